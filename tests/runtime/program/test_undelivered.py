"""A frame that control never takes: the programs in it end, and the others go on over the same link."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tartlet_common.abi import Flag, Op
from tartlet_common.errors.registry import Undelivered
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_common.rpc.resume import ATTEMPTS
from tartlet_protos import control_pb2, programs_pb2
from tests.runtime.fake_control import FakeControl
from tests.runtime.harness import Stream, launch_spec, native, running

_Event = programs_pb2.ProgramEvent


@dataclass
class Breaking(FakeControl):
    """Speaks the protocol with numbers, and breaks the connection at each frame that holds `poison`."""

    poison_bytes: bytes = b""
    breaks: int = 0
    hellos: int = 0
    applied: int = 0
    sent: int = 0

    async def Connect(self, requests: Any, context: Any) -> None:  # type: ignore[override]
        async for got in requests:
            reply = control_pb2.ControlFrame()
            if got.HasField("hello"):
                resumes = got.hello.HasField("resume")
                reply.hello.CopyFrom(control_pb2.ControlHello(protocol=2, incarnation=self.incarnation, grace_s=60))
                reply.hello.resumed, reply.hello.applied = resumes, self.applied
                if not resumes:
                    self.hellos += 1
                    self.frames.append(got)
                    reply.models.extend(self.models())
                    reply.models_changed = True
            elif self.poison_bytes and self.poison_bytes in got.SerializeToString():
                self.breaks += 1
                return
            elif got.number != self.applied + 1:
                continue
            else:
                self.applied += 1
                self._take(got, reply)
                reply.settled.extend(control_pb2.ProgramSettled(handle=end.handle) for end in got.ends)
                self.sent += 1
                reply.number, reply.applied = self.sent, self.applied
            await context.write(reply)


@pytest.mark.parametrize("poison", ["start", "command"])
async def test_programs_of_a_frame_that_breaks_every_connection_end_and_no_others(run_dir: Path, poison: str) -> None:
    control = Breaking(poison_bytes=b"poison")
    async with running(run_dir, control) as rig:
        beside, other = await native(rig)
        if poison == "start":
            stream = Stream(rig.stub.Launch(programs_pb2.LaunchRequest(specs=[launch_spec(idempotency_key="poison")])))
        else:
            stream, guest = await native(rig)
            guest.submit((int(Op.FORWARD), {"ticket": 1, "flags": int(Flag.AWAIT), "payload": b"poison"}))
        event = await stream.next()
        error = error_from_proto(event.error)
        assert isinstance(error, Undelivered)
        assert event.kind == (_Event.REJECTED if poison == "start" else _Event.ENDED)
        assert control.breaks == ATTEMPTS
        assert await other.call(Op.FORWARD) == b"answer 1"
        other.end(text="done")
        assert (await beside.rest())[-1].data == b"done"
        assert control.hellos == 1  # the link has gone on
