"""Set-up of the runtime: built once, and usable without a compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tartlet_common.errors.registry import StartFailed
from tartlet_runtime.guests import build as build_module
from tartlet_runtime.guests.build import build, guest_digest, python_guest
from tartlet_runtime.wasm import Compiled, HostConfig, WasmHost
from tartlet_runtime.wasm.boundary.shim import build_shim, library_path, open_boundary
from tartlet_runtime.wasm.compiling.aot import AotCache


@pytest.mark.timeout(300)
def test_a_second_build_has_nothing_to_do(python_compiled: Compiled, cache_dir: Path) -> None:
    said: list[str] = []
    begin = time.monotonic()
    assert build(cache_dir, say=said.append) == python_compiled
    assert time.monotonic() - begin < 2
    assert all("up to date" in line or "no C compiler" in line for line in said)


def test_a_guest_that_is_not_built_says_how(tmp_path: Path) -> None:
    with pytest.raises(StartFailed) as raised:
        python_guest(tmp_path)
    assert raised.value.fields["role"] == "runtime"
    assert f"python -m {build_module.__name__}" in str(raised.value.fields["detail"])


def test_a_change_of_any_source_is_another_guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "app.py"
    source.write_text("a = 1\n")
    monkeypatch.setattr(build_module, "guest_sources", lambda: [source])
    before = guest_digest()
    source.write_text("a = 2\n")
    assert guest_digest() != before


def test_a_guest_in_use_outlives_the_builds_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "app.py"
    monkeypatch.setattr(build_module, "guest_sources", lambda: [source])
    component = b"\0asm\x0d\0\x01\0"
    week_s = 7 * 86_400.0

    def built(text: str) -> Path:
        source.write_text(text)
        note = build_module._note_path(tmp_path)
        note.parent.mkdir(exist_ok=True)
        note.write_text(json.dumps({"sha256": AotCache(tmp_path).compile(component, trusted=True).digest}))
        os.utime(note, (time.time() - week_s, time.time() - week_s))
        return note

    notes = [built(f"a = {number}\n") for number in range(build_module._GUESTS_KEPT + 2)]
    source.write_text("a = 0\n")
    python_guest(tmp_path)
    build_module._prune(tmp_path)
    assert notes[0].exists()
    assert sum(note.exists() for note in notes) == build_module._GUESTS_KEPT


def test_a_missing_tool_is_a_typed_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(StartFailed, match="componentize-py is missing"):
        build(tmp_path, say=lambda _line: None)


def test_without_a_compiler_ctypes_does_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert build_shim(tmp_path) is None
    assert open_boundary("auto", tmp_path).name == "ctypes"
    with pytest.raises(FileNotFoundError):
        open_boundary("shim", tmp_path)


def test_a_shim_that_others_could_have_written_is_not_loaded(tmp_path: Path) -> None:
    path = library_path(tmp_path)
    path.parent.mkdir(parents=True)
    path.parent.chmod(0o777)
    path.write_bytes(b"")
    assert open_boundary("auto", tmp_path).name == "ctypes"


@pytest.mark.parametrize("boundary", ["auto", "ctypes"])
def test_a_process_that_never_closes_its_host_exits_cleanly(cache_dir: Path, boundary: str) -> None:
    probe = Path(__file__).parent / "guests" / "probe.wasm"
    code = f"""
from pathlib import Path
from tartlet_runtime.wasm import HostConfig, WasmHost
host = WasmHost(HostConfig(boundary={boundary!r}, cache_dir=Path({str(cache_dir)!r})))
program = host.load(host.aot.compile(Path({str(probe)!r}).read_bytes()))
guests = [host.create(program) for _ in range(9)]
for guest in guests:
    guest.start()
    guest.step()
print(len({{guest.phase for guest in guests}}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_two_hosts_in_one_process(cache_dir: Path) -> None:
    with WasmHost(HostConfig(cache_dir=cache_dir, max_guests=2)) as one:
        with WasmHost(HostConfig(cache_dir=cache_dir, max_guests=2)) as two:
            assert one.num_guests == two.num_guests == 0
        one.drain()
