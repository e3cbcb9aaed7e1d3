"""Programs of several files over real processes: run, launched by name, replayed, tested and refused."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from pathlib import Path

import pytest

from tartlet import CatalogueEntry, Language, LaunchSpec, Message, Source
from tartlet_common.bundles.packing import pack
from tartlet_common.errors.registry import BundleTooLarge, InvalidBundle, InvalidSource, NativePackage
from tests.e2e.conftest import server
from tests.e2e.serving import PROGRAMS, Serving, client_of, out, tartlet_cli

__all__ = ["server"]
pytestmark = pytest.mark.timeout(180)

SEVERAL = PROGRAMS / "several"
RESULT = "Answer What? 3: 8"


def line_of(path: Path, text: str) -> int:
    """Return the number of the first line that has a text."""
    return next(n for n, line in enumerate(path.read_text().splitlines(), 1) if text in line)


async def test_a_directory_runs_and_is_known_by_its_digest_and_by_name(server: Serving) -> None:
    async with client_of(server) as client:
        source = Source.from_file(SEVERAL)
        run = await client.run(source, ["What?"])
        sent = [event.text async for event in run if isinstance(event, Message)]
        assert run.ended is not None
        assert run.ended.success, run.ended.error
        assert (sent, run.ended.result) == ([f"{SEVERAL}/main.py"], RESULT)
        assert await client.validate(source) == source.digest
        (digest,) = await client.put([CatalogueEntry("several", source)])
        assert digest == source.digest
        named = await (await client.run(spec=LaunchSpec(inferlet="several", args=["What?"]))).wait()
        assert named.result == RESULT


async def test_a_failure_names_the_file_and_the_line_of_the_module(server: Serving) -> None:
    async with client_of(server) as client:
        ended = await (await client.run(Source.from_file(SEVERAL), ["What?", "fail"])).wait()
    assert ended.error is not None
    traceback = str(ended.error.fields["traceback"])
    for name, function, text in (
        ("main.py", "main", 'calculator.add("1", None)'),
        ("abilities/calculator.py", "add", "return int(a) + int(b)"),
    ):
        line = line_of(SEVERAL / name, text)
        assert f'File "{SEVERAL}/{name}", line {line}, in {function}\n    {text}' in traceback
    assert "_running" not in traceback


async def test_a_module_s_syntax_error_is_told_before_a_launch(server: Serving) -> None:
    files = {"main.py": b"import broken\nasync def main(): ...\n", "broken.py": b"def f(:\n    pass\n"}
    async with client_of(server) as client:
        with pytest.raises(InvalidSource) as refused:
            await client.validate(Source(pack(files), filename="p"))
    assert 'File "p/broken.py", line 1' in str(refused.value.fields["detail"])


def _zip(**files: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return made.getvalue()


HOSTILE = [
    (_zip(**{"main.py": b"", "../x.py": b""}), InvalidBundle),
    (_zip(**{"main.py": b"", "bomb": bytes(70 << 20)}), BundleTooLarge),
    (_zip(**{"main.py": b"", "c.so": b"\x7fELF"}), NativePackage),
    (b"PK\x03\x04" + bytes(1000), InvalidBundle),
]


async def test_hostile_archives_get_typed_errors_and_the_server_goes_on(server: Serving) -> None:
    async with client_of(server) as client:
        for data, kind in HOSTILE:
            with pytest.raises(kind):
                await client.run(Source(data, Language.PYTHON, "evil.zip"))
        assert (await (await client.run(Source.from_file(SEVERAL), ["What?"])).wait()).result == RESULT


def test_built_run_outside_the_sandbox_replayed_and_tested(server: Serving, tmp_path: Path) -> None:
    digests = [out(tmp_path, "build", str(SEVERAL), "-o", str(tmp_path / name)) for name in ("a.zip", "b.tartlet")]
    assert digests[0] == digests[1] == Source.from_file(SEVERAL).digest + "\n"
    assert Source.from_file(tmp_path / "a.zip") == Source(
        (tmp_path / "b.tartlet").read_bytes(), filename=f"{tmp_path}/a.zip"
    )
    line = ("run", "--server", "local", "--quiet")
    assert out(server.run_dir, *line, str(tmp_path / "a.zip"), "What?").splitlines()[-1] == RESULT
    for program in (SEVERAL, tmp_path / "b.tartlet"):
        assert out(server.run_dir, *line, "--native", str(program), "What?").splitlines()[-1] == RESULT

    changed = tmp_path / "changed" / "several"
    shutil.copytree(SEVERAL, changed)
    program_id = json.loads(out(server.run_dir, "launch", "--json", str(SEVERAL), "What?", "fail"))["program_id"]
    failed = tartlet_cli(server.run_dir, "attach", program_id)  # the journal of a failed run is kept
    journals = server.run_dir / "journals"
    for how in ((), ("--native", "--no-debugger")):
        replayed = tartlet_cli(server.run_dir, "replay", program_id, "--journals", str(journals), *how)
        assert replayed.returncode == failed.returncode == 1
        assert f'File "{SEVERAL}/abilities/calculator.py", line ' in replayed.stderr
        assert "Diverged" not in replayed.stderr
    journal = str(journals / f"{program_id}.journal")
    same = tartlet_cli(server.run_dir, "test", journal, str(changed))
    assert (same.returncode, same.stderr) == (0, "1 same\n"), same.stdout
    answering = changed / "agent" / "answering.py"
    answering.write_text(answering.read_text().replace('f"{prefix} {question}', 'f"{prefix}! {question}', 1))
    differs = json.loads(tartlet_cli(server.run_dir, "test", journal, str(changed), "--json").stdout)
    assert differs["status"] == "diverged"
    assert differs["line"].startswith(f"{SEVERAL}/agent/answering.py:"), differs
