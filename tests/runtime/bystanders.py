"""Programs that the tests of faults and ends share."""

from __future__ import annotations

from tartlet_common.abi import Flag, Op
from tartlet_common.errors.registry import TartletError
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_protos import programs_pb2
from tests.runtime.harness import Rig, Stream, native

_Event = programs_pb2.ProgramEvent
SAMPLE = (Op.SAMPLE, {"ticket": 1, "flags": Flag.AWAIT, "payload": bytes(32)})


async def launch(rig: Rig, *specs: programs_pb2.LaunchSpec) -> Stream:
    return Stream(rig.stub.Launch(programs_pb2.LaunchRequest(specs=specs)))


async def ended(stream: Stream) -> TartletError | None:
    last = (await stream.rest())[-1]
    assert last.kind == _Event.ENDED
    return error_from_proto(last.error)


async def bystander(rig: Rig) -> None:
    """Somebody else's program, which must not notice."""
    stream, guest = await native(rig)
    guest.submit(SAMPLE)
    await guest.wait()
    guest.end()
    assert await ended(stream) is None
