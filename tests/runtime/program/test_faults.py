"""What docs/limits.md promises of the runtime: each fault ends as it says, and whoever has no part in it goes on."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import Any

import grpc
import pytest

from tartlet_common.abi import Flag, Op
from tartlet_common.errors.registry import (
    InboxFull,
    InvalidArgument,
    MalformedSubmission,
    OutOfPages,
    Overloaded,
    ProgramFailed,
    ResourceQuotaExceeded,
    SourceTooLarge,
    TartletError,
    TooManyCommands,
    UnknownInferlet,
    UnknownModel,
    UnknownOperation,
    UnknownProgram,
    UnknownResource,
    UnsupportedAbi,
)
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_protos import common_pb2, programs_pb2
from tartlet_runtime.guests.native import ERROR, HELLO, SUBMIT, WAIT, frame
from tests.runtime.bystanders import SAMPLE, bystander, ended, launch
from tests.runtime.fake_control import FakeControl
from tests.runtime.harness import PYTHON, NativeProgram, Rig, launch_spec, native, running

_Event = programs_pb2.ProgramEvent
pytestmark = pytest.mark.usefixtures("python_component")


# ---- output and input past their bounds ----


async def test_a_slow_reader_holds_only_its_own_program_and_gets_everything(run_dir: Path) -> None:
    source = b"""
import inferlet
async def main():
    for i in range(400):
        inferlet.send('y' * 100_000)
        await inferlet.get_model()
"""
    async with running(run_dir) as rig:
        stream = await launch(rig, launch_spec(PYTHON, source, limits=common_pb2.Limits(output_bytes=1 << 20)))
        program_id = (await stream.next()).program_id
        await asyncio.sleep(0.3)
        for _ in range(3):
            await bystander(rig)
        listed = (await rig.stub.List(programs_pb2.ListRequest())).programs
        assert [(p.program_id, p.state) for p in listed] == [(program_id, "running")]
        events = await stream.rest()
        assert sum(e.kind == _Event.MESSAGE for e in events) == 400
        assert events[-1].success


async def test_a_full_inbox_refuses_and_the_program_goes_on(run_dir: Path) -> None:
    async with running(run_dir, inbox_messages=3) as rig:
        stream, guest = await native(rig)
        items = [programs_pb2.SendItem(program_id=stream.seen[0].program_id, message=b"%d" % i) for i in range(5)]
        reply = await rig.stub.Send(programs_pb2.SendRequest(items=items))
        assert [type(error_from_proto(e)) for e in reply.errors] == [type(None)] * 3 + [InboxFull] * 2
        assert await guest.call(Op.RECEIVE) == b"0"
        guest.end()
        assert await ended(stream) is None


async def test_a_flood_of_commands_for_the_runtime_is_worked_on_in_turns_and_in_order(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        stream, guest = await native(rig)
        rows = [(Op.SEND, {"payload": b"%d" % i}) for i in range(5000)]
        guest.submit(*rows, (Op.GET_ARG, {"flags": Flag.AWAIT, "ticket": 7}))
        assert (await guest.wait()).records["ticket"].tolist() == [7]
        guest.submit(*rows)
        guest.end(text="done")
        guest.writer.close()
        events = await stream.rest()
        assert [e.data for e in events] == [b"%d" % i for _ in range(2) for i in range(5000)] + [b"done"]


async def test_answers_that_are_never_taken_are_bounded(run_dir: Path) -> None:
    async with running(run_dir, commands_in_flight=100) as rig:
        stream, guest = await native(rig)
        guest.submit(*[(Op.GET_ARG, {"flags": Flag.AWAIT, "ticket": i}) for i in range(1, 300)])
        assert isinstance(await ended(stream), TooManyCommands)
        big = ["x" * 500_000, "y" * 500_000]
        stream, guest = await native(rig, args=big)
        guest.submit(*[(Op.GET_ARG, {"flags": Flag.AWAIT, "ticket": i}) for i in range(1, 90)])
        assert isinstance(await ended(stream), ResourceQuotaExceeded)


async def test_large_texts_are_worked_on_beside_the_loop(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        stream, guest = await native(rig)
        text = "ab" * 100_000
        assert len(await guest.call(Op.TOKENIZE, payload=text.encode())) == 4 * len(text)
        guest.submit(*[(Op.TOKENIZE, {"flags": Flag.AWAIT, "ticket": i, "payload": b"z" * 1000}) for i in range(1, 60)])
        got: list[int] = []
        while len(got) < 59:
            got += (await guest.wait()).records["ticket"].tolist()
        assert sorted(got) == list(range(1, 60))
        guest.end()
        assert await ended(stream) is None


# ---- what guests get wrong ----


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", MalformedSubmission),
        (b"\1\0" + bytes(14) + b"trailing", MalformedSubmission),
        (b"\7\0" + bytes(14), UnsupportedAbi),
        (b"\1\0\0\0\1\0\0\0" + bytes(8) + b"\xff\xff" + bytes(30), UnknownOperation),
        (b"\1\0\0\0\1\0\0\0" + bytes(8) + b"\2\0" + bytes(26) + b"\xff\0\0\0", MalformedSubmission),
    ],
)
async def test_a_bad_submission_ends_its_program(run_dir: Path, data: bytes, expected: type[TartletError]) -> None:
    async with running(run_dir) as rig:
        stream, guest = await native(rig)
        guest.write(SUBMIT, data)
        assert isinstance(await ended(stream), expected)
        with pytest.raises(expected):
            await guest.wait()
        await bystander(rig)


async def test_a_failed_call_is_a_failure_record_and_nothing_else(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        stream, guest = await native(rig)
        for op, payload in ((Op.TOKENIZE, b"\xff"), (Op.DETOKENIZE, b"abc"), (Op.FORMAT_CHAT, b"[")):
            with pytest.raises(InvalidArgument):
                await guest.call(op, a=0, payload=payload)
        with pytest.raises(InvalidArgument):
            await guest.call(Op.DETOKENIZE, a=0, payload=b"\xff\xff\xff\xff")
        with pytest.raises(UnknownModel) as unknown:
            await guest.call(Op.TOKENIZE, a=77, payload=b"x")
        assert unknown.value.fields["model"] == "#77"
        assert await guest.call(Op.AVAILABLE_MODELS) == b'["fake"]'
        guest.end()
        assert await ended(stream) is None


async def test_too_many_commands_at_once_end_the_program(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        stream, guest = await native(rig, limits=common_pb2.Limits(commands_in_flight=10))
        guest.submit(*[SAMPLE] * 11)
        assert isinstance(await ended(stream), TooManyCommands)


async def test_a_queue_left_poisoned_fails_the_program(run_dir: Path) -> None:
    control = FakeControl(poison=UnknownResource(kind="page", id=1))
    async with running(run_dir, control) as rig:
        stream, guest = await native(rig)
        guest.submit(SAMPLE)
        await guest.wait()
        guest.end()
        assert isinstance(await ended(stream), UnknownResource)


async def test_a_native_process_that_vanishes_ends_its_program(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        stream, guest = await native(rig)
        guest.writer.close()
        assert isinstance(await ended(stream), ProgramFailed)


async def test_a_native_failure_brings_its_traceback(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        stream, guest = await native(rig)
        guest.end(ok=False, text="Traceback: line 7")
        error = await ended(stream)
        assert isinstance(error, ProgramFailed)
        assert error.fields["traceback"] == "Traceback: line 7"


async def test_a_token_is_good_for_one_connection_and_a_wrong_one_for_none(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        stream = await launch(rig, launch_spec())
        token = (await stream.next()).data
        guest = await NativeProgram.connect(rig, token)
        for refused in (token, b"wrong"):
            assert isinstance(await refusal(rig, refused), UnknownProgram)
        assert await guest.call(Op.AVAILABLE_MODELS) == b'["fake"]'
        guest.end()
        assert await ended(stream) is None


async def refusal(rig: Rig, token: bytes) -> TartletError:
    """The error that a connection with this token is answered with."""
    reader, writer = await asyncio.open_unix_connection(str(rig.settings.guest_socket))
    writer.write(frame(HELLO, token))
    async with asyncio.timeout(10):
        data = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "little"))
        assert await reader.read() == b""
    writer.close()
    assert data[0] == ERROR
    return TartletError.from_wire(int.from_bytes(data[1:5], "little"), data[5:])


@pytest.mark.parametrize("first", [frame(WAIT, bytes(12)), b"\xff\xff\xff\xff\x01", b"\0\0\0\0\0", os.urandom(4000)])
async def test_garbage_on_the_guest_socket_is_hung_up_on(run_dir: Path, first: bytes) -> None:
    async with running(run_dir) as rig:
        reader, writer = await asyncio.open_unix_connection(str(rig.settings.guest_socket))
        writer.write(first)
        async with asyncio.timeout(12):
            while await reader.read(1000):
                pass
        writer.close()
        stream, guest = await native(rig)
        guest.writer.write(frame(WAIT, bytes(3)))
        assert isinstance(await ended(stream), MalformedSubmission)


# ---- launches that are refused ----


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"language": 9}, InvalidArgument),
        ({"data": b"x" * 2000}, SourceTooLarge),
        ({"args": ["x" * 1_100_000]}, InvalidArgument),
        ({"seed": b"short"}, InvalidArgument),
        ({"limits": common_pb2.Limits(deadline_s=float("nan"))}, InvalidArgument),
        ({"inferlet": "nobody"}, UnknownInferlet),
        ({"tenant": "t" * 2000}, InvalidArgument),
    ],
)
async def test_a_bad_launch_is_rejected_and_its_neighbour_runs(
    run_dir: Path, change: dict[str, Any], expected: type[TartletError]
) -> None:
    async with running(run_dir, source_bytes=1024) as rig:
        good = launch_spec(PYTHON, b"def main(): return 5\n")
        stream = await launch(rig, launch_spec(**change), good)
        first, second = await stream.next(), await stream.next()
        assert (first.index, first.kind) == (0, _Event.REJECTED)
        assert isinstance(error_from_proto(first.error), expected)
        assert (second.index, second.kind) == (1, _Event.ACCEPTED)
        assert (await stream.rest())[-1].data == b"5"


async def test_a_full_runtime_and_a_refusing_control_reject(run_dir: Path) -> None:
    async with running(run_dir, capacity=2) as rig:
        stream = await launch(rig, *[launch_spec(attach=False)] * 3)
        kinds = [await stream.next() for _ in range(3)]
        assert [e.kind for e in kinds] == [_Event.ACCEPTED, _Event.ACCEPTED, _Event.REJECTED]
        assert isinstance(error_from_proto(kinds[2].error), Overloaded)
        ids = [e.program_id for e in kinds[:2]]
        await rig.stub.Kill(programs_pb2.KillRequest(program_ids=ids, reason="make room"))
        rig.control.refuse = OutOfPages(kind="KV pages", total=1)
        stream = await launch(rig, launch_spec())
        assert isinstance(error_from_proto((await stream.next()).error), OutOfPages)


async def test_an_upload_past_the_message_limit_is_refused_by_the_transport(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await (await launch(rig, launch_spec(PYTHON, b" " * (5 << 20)))).next()
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        await bystander(rig)


async def test_random_requests_are_answered_or_refused_and_the_role_goes_on(run_dir: Path) -> None:
    rng = random.Random(11)
    async with running(run_dir) as rig:
        for _ in range(60):
            spec = launch_spec(rng.choice([0, 1, 2, 3, 7]), rng.randbytes(rng.randrange(40)), attach=rng.random() < 0.5)
            spec.args.extend("".join(map(chr, rng.choices(range(1, 0xD000), k=5))) for _ in range(rng.randrange(3)))
            spec.source.digest = rng.choice(["", "x", "0" * 64])
            spec.limits.memory_bytes = rng.choice([0, 1, 2**40])
            spec.limits.cpu_slice_s = rng.choice([0, 1e-9, 0.05, -1, float("inf")])
            spec.limits.deadline_s = 0.2
            spec.limits.journal_bytes = rng.choice([0, 1, 2**60])
            spec.seed = rng.randbytes(rng.choice([0, 16, 16, 5]))
            spec.durable = rng.random() < 0.5
            spec.trace[rng.choice(["", "traceparent"])] = "".join(map(chr, rng.choices(range(1, 500), k=9)))
            stream = await launch(rig, spec)
            assert (await stream.next()).kind in (_Event.ACCEPTED, _Event.REJECTED)
            stream.call.cancel()
            random_id = "".join(map(chr, rng.choices(range(1, 500), k=9)))
            items = [programs_pb2.SendItem(program_id=random_id, message=rng.randbytes(9))]
            reply = await rig.stub.Send(programs_pb2.SendRequest(items=items))
            assert isinstance(error_from_proto(reply.errors[0]), UnknownProgram)
        await bystander(rig)
