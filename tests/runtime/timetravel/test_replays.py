"""Recorded programs run again as the command line does it: outside the sandbox, in it, and beside a new version."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tartlet_common.errors.registry import Diverged, InvalidArgument, InvalidSource, UnknownProgram
from tartlet_protos import programs_pb2
from tartlet_runtime.timetravel import finding
from tartlet_runtime.timetravel.__main__ import main
from tests.redis_server import redis_server
from tests.runtime.harness import PYTHON, Stream, launch_spec, running

_Event = programs_pb2.ProgramEvent

CHATTY = b"""
import asyncio, datetime, random, secrets, sys, time, uuid
from inferlet import send, get_model, receive
async def main(args):
    model = await get_model()
    send(f"{time.time()} {random.random()} {uuid.uuid4()} {model.name} {secrets.token_hex(4)} {args}")
    print(datetime.datetime.now(), datetime.date.today(), time.strftime("%H:%M:%S"), time.localtime().tm_min)
    async def talk(name):
        for i in range(4):
            await asyncio.sleep(random.random() / 100)
            send(f"{name} {i} {time.monotonic()} {random.getrandbits(64)}")
    async with asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(talk(name))
    send(str([time.time() for _ in range(64)]))  # each in all its digits
    time.sleep(0.001)
    print("slept", time.perf_counter(), file=sys.stderr)
    got = await receive()
    send(f"got {got} at {time.time_ns()}")
    return str(datetime.datetime.now(datetime.UTC))
"""


@pytest.fixture
def recorded(run_dir: Path, python_component: object) -> Path:
    """The journal of a program that reads every clock and draws from every source of randomness."""
    return asyncio.run(record(run_dir))


async def record(run_dir: Path) -> Path:
    async with running(run_dir, keep_journals=True) as rig:
        spec = launch_spec(PYTHON, CHATTY, filename="chatty.py", args=["x"])
        stream = Stream(rig.stub.Launch(programs_pb2.LaunchRequest(specs=[spec])))
        accepted = await stream.next()
        while not (await stream.next()).data.startswith(b"slept"):
            pass
        item = programs_pb2.SendItem(program_id=accepted.program_id, message=b"hey")
        await rig.stub.Send(programs_pb2.SendRequest(items=[item]))
        events = await stream.rest()
        assert events[-1].success, events[-1].error
    return run_dir / "journals" / f"{accepted.program_id}.journal"


def tool(*args: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tartlet_runtime.timetravel", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, **options)


def test_native_python_gives_the_commands_of_the_sandbox_byte_for_byte(recorded: Path) -> None:
    ran = tool("replay", recorded, "--native", "--no-debugger")
    assert ran.returncode == 0, ran.stderr
    assert "ended as then, in the result " in ran.stderr  # every wait has compared the digest of the commands
    assert "got hey at " in ran.stdout
    again = tool("replay", recorded)
    assert again.stdout.startswith(ran.stdout)  # beside the result


def test_pdb_begins_behind_as_many_deliveries_as_asked(recorded: Path) -> None:
    total = sum(record.kind == 0 for record in finding.read(recorded).parsed.records)
    ran = tool("replay", recorded, "--native", "--until", total, input="p got\nc\n")
    before, _, after = ran.stdout.partition("(Pdb) 'hey'")
    assert "got hey at" in after
    assert "got hey at" not in before
    beyond = tool("replay", recorded, "--until", total + 1)
    assert "InvalidArgument: --until" in beyond.stderr


def test_a_changed_program_diverges_at_its_line(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = CHATTY[: CHATTY.index(b'send(f"got')].count(b"\n") + 1
    changed = tmp_path / "chatty.py"
    changed.write_bytes(CHATTY.replace(b"got {got} at", b"have {got} at"))
    assert main(["test", str(recorded.parent), str(changed), "--json"]) == 1
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["status"], verdict["line"]) == ("diverged", f"chatty.py:{line}")
    assert "send 'got hey at" in verdict["was"]
    assert "send 'have hey at" in verdict["now"]

    changed.write_bytes(CHATTY.replace(b"return str(", b"return 'now ' + str("))
    assert main(["test", str(recorded), str(changed), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["status"] == "other end"
    changed.write_bytes(CHATTY.replace(b"    got = await receive()", b"    got = await receive()\n    await receive()"))
    assert main(["test", str(recorded), str(changed), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["status"] == "diverged"
    changed.write_bytes(CHATTY)
    assert main(["test", str(recorded), str(changed)]) == 0

    changed.write_bytes(CHATTY.replace(b"range(4)", b"range(3)"))
    assert main(["replay", str(recorded), "--source", str(changed)]) != 0
    assert f"{Diverged.__name__}: " in capsys.readouterr().err
    native = tool("replay", recorded, "--native", "--no-debugger", "--source", changed)
    assert native.returncode != 0
    assert f"{Diverged.__name__}: " in native.stderr  # behind what the program prints until it diverges


def test_journals_are_found_by_file_by_id_and_in_redis(recorded: Path, tmp_path: Path) -> None:
    place = finding.Place(recorded.parent)
    found = finding.find(recorded.stem[:9], place)
    with pytest.raises(UnknownProgram):
        finding.find("nobody", place)
    exported = tmp_path / "out.journal"
    finding.export(found, exported)
    assert exported.stat().st_mode & 0o777 == 0o600
    with pytest.raises(InvalidArgument):
        finding.export(found, exported)
    other = finding.Place(tmp_path / "other")
    finding.store(finding.read(exported), other)
    finding.store(finding.read(exported), other)
    assert finding.find(recorded.stem, other).data == found.data
    exported.write_bytes(found.data[:-3])
    with pytest.raises(InvalidArgument):
        finding.store(finding.read(exported), other)  # the run's end is torn off: another journal
    exported.write_bytes(b"no journal")
    with pytest.raises(InvalidSource):
        finding.read(exported)
    with redis_server(tmp_path) as server:
        url = f"redis://127.0.0.1:{server.port}/0"
        redis = finding.Place(tmp_path, url)
        finding.store(found, redis)
        again = finding.find(f"{url}#{recorded.stem}", place)
        assert again.data == found.data
