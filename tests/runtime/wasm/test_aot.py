"""Modules compiled ahead of time: what is refused, what is kept, what is compiled anew."""

from __future__ import annotations

import os
import random
import stat
import time
from pathlib import Path

import pytest

from tartlet_common.errors.registry import (
    CompileTimeout,
    CorruptModule,
    DiskFull,
    Overloaded,
    ProgramMemoryExceeded,
    SourceTooLarge,
)
from tartlet_runtime.wasm import AotCache, GuestLimits, HostConfig, LinkedModule, ModuleKind, WasmHost
from tartlet_runtime.wasm.compiling import aot as aot_module
from tests.runtime.wasm.conftest import GUESTS
from tests.runtime.wasm.driving import Driver, outcome_of

PROBE = (GUESTS / "probe.wasm").read_bytes()
MINIMAL = bytes.fromhex("0061736d01000000")


@pytest.fixture
def cache(tmp_path: Path) -> AotCache:
    return AotCache(tmp_path)


def test_a_module_is_compiled_once(cache: AotCache) -> None:
    first = cache.compile(PROBE)
    made = first.path.stat().st_ino
    again = cache.compile(PROBE)
    assert first == again
    assert first.kind is ModuleKind.CORE
    assert again.path.stat().st_ino == made
    assert cache.find(first.digest, first.kind) == first
    assert [path.name for path in cache.directory.iterdir()] == [first.path.name]


def test_the_cache_is_private(cache: AotCache) -> None:
    compiled = cache.compile(PROBE)
    assert stat.S_IMODE(cache.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(compiled.path.stat().st_mode) == 0o600


@pytest.mark.parametrize("spoil", ["directory", "file", "link"])
def test_a_file_that_others_could_have_written_is_compiled_anew(cache: AotCache, tmp_path: Path, spoil: str) -> None:
    compiled = cache.compile(PROBE)
    if spoil == "directory":
        cache.directory.chmod(0o777)
    elif spoil == "file":
        compiled.path.chmod(0o666)
    else:
        elsewhere = compiled.path.rename(tmp_path / "elsewhere.cwasm")
        compiled.path.symlink_to(elsewhere)
    assert cache.find(compiled.digest, compiled.kind) is None
    cache.compile(PROBE)
    assert cache.find(compiled.digest, compiled.kind) == compiled


def test_other_flags_are_another_file(cache: AotCache, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = cache.compile(PROBE)
    monkeypatch.setattr(aot_module, "flags_digest", lambda: "00000000")
    assert cache.find(compiled.digest, compiled.kind) is None


@pytest.mark.parametrize(
    "wasm",
    [b"", b"\0asm", b"not wasm at all", MINIMAL[:4] + b"\x07\0\0\0", MINIMAL + b"\xff" * 40, PROBE[:-100], PROBE[:50]],
    ids=["empty", "magic only", "text", "version", "rubbish", "cut", "cut early"],
)
def test_what_is_no_module_is_refused(cache: AotCache, wasm: bytes) -> None:
    with pytest.raises(CorruptModule) as refused:
        cache.compile(wasm)
    assert "Warning" not in str(refused.value), "the reason, and nothing of the process that found it"
    assert not cache.directory.exists() or not list(cache.directory.iterdir())


def test_a_module_over_the_limit_is_refused_unseen(tmp_path: Path) -> None:
    cache = AotCache(tmp_path, max_wasm_bytes=1000)
    with pytest.raises(SourceTooLarge) as caught:
        cache.compile(PROBE)
    assert caught.value.fields == {"size": len(PROBE), "limit": 1000}


def test_a_compilation_over_its_time_is_ended(tmp_path: Path) -> None:
    with pytest.raises(CompileTimeout):
        AotCache(tmp_path, compile_timeout_s=0.01).compile(PROBE)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_cache_that_can_not_be_written_is_a_typed_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(DiskFull):
        AotCache(tmp_path).compile(PROBE)


def test_a_cache_below_a_file_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskFull):
        AotCache(tmp_path / "file").compile(PROBE)


def leb(value: int) -> bytes:
    out = bytearray()
    while True:
        value, low = value >> 7, value & 127
        out.append(low | 128 if value else low)
        if not value:
            return bytes(out)


def section(number: int, body: bytes) -> bytes:
    return bytes([number]) + leb(len(body)) + body


def module(*, memory_pages: int = 1, exports: tuple[str, ...] = ("memory", "tartlet_main")) -> bytes:
    """A guest that returns 0: type () -> i32, one function, one memory."""
    entries = b"".join(
        leb(len(name)) + name.encode() + (b"\x02\x00" if name == "memory" else b"\x00\x00") for name in exports
    )
    return (
        MINIMAL
        + section(1, b"\x01\x60\x00\x01\x7f")
        + section(3, b"\x01\x00")
        + section(5, b"\x01\x00" + leb(memory_pages))
        + section(7, leb(len(exports)) + entries)
        + section(10, b"\x01\x04\x00\x41\x00\x0b")
    )


@pytest.mark.parametrize("exports", [("memory",), ("tartlet_main",), ()])
def test_a_module_that_is_no_guest_is_refused(host: WasmHost, exports: tuple[str, ...]) -> None:
    compiled = host.aot.compile(module(exports=exports))
    with pytest.raises(CorruptModule, match="does not export"):
        host.load(compiled)


def test_a_component_of_another_world_is_refused(host: WasmHost) -> None:
    compiled = host.aot.compile(b"\0asm\x0d\0\x01\0")
    assert compiled.kind is ModuleKind.COMPONENT
    with pytest.raises(CorruptModule, match="run"):
        host.load(compiled)


def test_a_memory_over_the_limit_ends_the_guest(driver: Driver, host: WasmHost) -> None:
    program = host.load(host.aot.compile(module(memory_pages=2048)))
    outcome = outcome_of(driver.run(driver.start(program)))
    assert outcome.error is None
    outcome = outcome_of(driver.run(driver.start(program, limits=GuestLimits(memory_bytes=1 << 20))))
    assert isinstance(outcome.error, ProgramMemoryExceeded)


def test_a_module_larger_than_any_slot_is_refused(host: WasmHost) -> None:
    with pytest.raises(CorruptModule, match="memory"):
        host.load(host.aot.compile(module(memory_pages=60_000)))


def test_a_full_pool_is_a_typed_error(cache_dir: Path) -> None:
    with WasmHost(HostConfig(max_guests=3, cache_dir=cache_dir, boundary="ctypes")) as small:
        program: LinkedModule = small.load(small.aot.compile(PROBE))
        guests = [small.create(program) for _ in range(3)]
        with pytest.raises(Overloaded):
            small.create(program)
        guests[0].kill()
        small.create(program)


@pytest.mark.parametrize("seed", range(6))
def test_a_mutated_module_is_refused_or_contained(driver: Driver, host: WasmHost, cache: AotCache, seed: int) -> None:
    chance = random.Random(seed)
    wasm = bytearray(PROBE)
    for _ in range(chance.randint(1, 4)):
        wasm[chance.randrange(8, len(wasm))] = chance.randrange(256)
    try:
        program = host.load(cache.compile(bytes(wasm)))
    except CorruptModule:
        return
    limits = GuestLimits(memory_bytes=16 << 20, cpu_burst_s=0.05)
    for order in (b"e", b"F", b"D", b"t", b"m"):
        guest = driver.run(driver.start(program, limits=limits), order, b"more", b"")
        guest.kill()
    host.drain()


def test_modules_that_nobody_used_for_longest_go_and_so_does_what_killed_compilers_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aot_module, "MODULES_KEPT", 2)
    cache = AotCache(tmp_path, compile_timeout_s=10)
    made = [cache.compile(PROBE + custom_section(n)) for n in range(2)]
    left, young = cache.directory / "compile-left", cache.directory / "compile-young"
    for scratch in (left, young):
        scratch.mkdir()
    for path, age_s in ((made[0].path, 200), (made[1].path, 100), (left, 100)):
        os.utime(path, (time.time() - age_s,) * 2)
    assert cache.find(made[0].digest, made[0].kind) is not None  # used
    newest = cache.compile(PROBE + custom_section(2))
    assert [c.path.exists() for c in (*made, newest)] == [True, False, True]
    assert (left.exists(), young.exists()) == (False, True)


def custom_section(n: int) -> bytes:
    """What makes another module of one, and means nothing."""
    return bytes([0, 3, 1, ord("n"), n])
