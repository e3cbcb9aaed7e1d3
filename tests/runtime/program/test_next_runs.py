"""What the journal of a program's next run tells whoever takes the program over."""

from __future__ import annotations

from pathlib import Path

import pytest

from tartlet_common.errors.registry import InvalidSource
from tartlet_protos import programs_pb2
from tartlet_runtime.journal.records import ParsedJournal, parse_journal
from tartlet_runtime.program.rerun import Rerun
from tests.runtime.harness import PYTHON, Stream, launch_spec, running


def journals_of(directory: Path) -> list[ParsedJournal]:
    found = []
    for path in directory.glob("slot-*"):
        try:
            found.append(parse_journal(path.read_bytes(), path.name))
        except InvalidSource:
            continue
    return found


SECOND = b"""
import asyncio, inferlet
async def main(args):
    if args:
        inferlet.send("waits")
        await asyncio.sleep(100)
    inferlet.send(await inferlet.receive())
    inferlet.continue_as_new(["second"])
"""


@pytest.mark.usefixtures("python_component")
async def test_the_next_run_s_journal_knows_the_keys_of_taken_and_of_untaken_messages(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        stream = Stream(rig.stub.Launch(programs_pb2.LaunchRequest(specs=[launch_spec(PYTHON, SECOND)])))
        program_id = (await stream.next(30)).program_id
        items = [
            programs_pb2.SendItem(program_id=program_id, message=message, key=key)
            for message, key in ((b"taken", b"K1"), (b"untaken", b"K2"), (b"plain", b""))
        ]
        reply = await rig.stub.Send(programs_pb2.SendRequest(items=items))
        assert not any(error.number for error in reply.errors)
        while (await stream.next(30)).data != b"waits":
            pass
        (parsed,) = journals_of(run_dir / "journals")
        assert parsed.header.args == ("second",)
        rerun = Rerun.of(parsed.records)
        assert rerun.messages == [b"untaken", b"plain"]
        assert [key for key in rerun.keys if key] == [b"K1", b"K2"]


ONCE = b"""
import inferlet
async def main(args):
    return await inferlet.receive()
"""


@pytest.mark.usefixtures("python_component")
async def test_a_message_that_an_ended_program_had_taken_is_acknowledged_again(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        stream = Stream(rig.stub.Launch(programs_pb2.LaunchRequest(specs=[launch_spec(PYTHON, ONCE)])))
        program_id = (await stream.next(30)).program_id

        async def refused(key: bytes) -> bool:
            item = programs_pb2.SendItem(program_id=program_id, message=b"last", key=key)
            (error,) = (await rig.stub.Send(programs_pb2.SendRequest(items=[item]))).errors
            return bool(error.number)

        assert not await refused(b"K1")
        while (await stream.next(30)).kind != programs_pb2.ProgramEvent.ENDED:
            pass
        assert not await refused(b"K1"), "the first answer may have been lost"
        assert await refused(b"K2")
        assert await refused(b"")
