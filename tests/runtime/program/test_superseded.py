"""What becomes of a program's copy here when control says that another runtime is the owner."""

from __future__ import annotations

from pathlib import Path

import pytest

from tartlet_common.errors.registry import InvalidSource, Superseded
from tartlet_common.rpc.error_proto import error_from_proto, error_to_proto
from tartlet_protos import control_pb2, programs_pb2
from tartlet_runtime.journal.records import parse_journal
from tartlet_runtime.program.rerun import Rerun
from tests.runtime.harness import PYTHON, Stream, launch_spec, running

_Event = programs_pb2.ProgramEvent
WAITS = b"""
import inferlet
async def main():
    inferlet.send("waits")
    await inferlet.receive()
"""


def ends_in(directory: Path) -> list[object]:
    """Return the ends of programs that the journals tell."""
    found: list[object] = []
    for path in directory.iterdir():
        try:
            found.append(Rerun.of(parse_journal(path.read_bytes(), path.name).records).end)
        except InvalidSource:
            continue
    return found


@pytest.mark.parametrize("word", ["kill", "answer to the announcement"])
@pytest.mark.usefixtures("python_component")
async def test_a_superseded_copy_ends_here_and_not_in_its_journal(run_dir: Path, word: str) -> None:
    async with running(run_dir) as rig:
        stream = Stream(rig.stub.Launch(programs_pb2.LaunchRequest(specs=[launch_spec(PYTHON, WAITS)])))
        program_id = (await stream.next(30)).program_id
        while (await stream.next(30)).data != b"waits":
            pass
        (handle,) = [start.handle for frame in rig.control.frames for start in frame.starts]
        error = error_to_proto(Superseded(program=program_id))
        frame = control_pb2.ControlFrame()
        if word == "kill":
            frame.kills.add(handle=handle, error=error)
        else:
            frame.started.add(handle=handle, error=error)
        await rig.control.push(frame)
        *_, last = await stream.rest()
        assert last.kind == _Event.ENDED
        assert isinstance(error_from_proto(last.error), Superseded)
        assert not (await rig.stub.List(programs_pb2.ListRequest(all=True))).programs
        assert ends_in(run_dir / "journals") == [None], "the owner's copy goes on"
        assert not [end for sent in rig.control.frames for end in sent.ends], "nobody is told of an end"
