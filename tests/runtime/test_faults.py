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
from tartlet_common.errors import (
    ControlLost,
    DeadlineExceeded,
    Disconnected,
    DiskFull,
    InboxFull,
    InvalidArgument,
    MalformedSubmission,
    OutOfPages,
    OutputTooLarge,
    Overloaded,
    ProgramFailed,
    ProgramKilled,
    QueuePoisoned,
    ResourceQuotaExceeded,
    SourceTooLarge,
    TartletError,
    TooManyCommands,
    UnknownInferlet,
    UnknownOperation,
    UnknownProgram,
    UnsupportedAbi,
)
from tartlet_common.wire import error_from_proto, error_to_proto
from tartlet_protos import common_pb2, control_pb2, programs_pb2
from tartlet_runtime.control_link import how_many_fit
from tartlet_runtime.native import HELLO, SUBMIT, WAIT, frame
from tests.runtime.harness import (
    PYTHON,
    FakeControl,
    NativeProgram,
    Rig,
    Stream,
    launch_spec,
    native,
    running,
)

_Event = programs_pb2.ProgramEvent
pytestmark = pytest.mark.usefixtures("python_component")
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


# ---- output and input past their bounds ----


async def test_sends_that_nobody_reads_end_the_program(run_dir: Path) -> None:
    source = b"from inferlet import send\ndef main():\n    for i in range(100_000):\n        send('x')\n"
    async with running(run_dir) as rig:
        stream = await launch(rig, launch_spec(PYTHON, source, attach=False))
        program_id = (await stream.next()).program_id
        await stream.rest()
        await bystander(rig)
        async with asyncio.timeout(30):
            while (await rig.stub.List(programs_pb2.ListRequest())).programs:  # noqa: ASYNC110 - a client polls
                await asyncio.sleep(0.05)
        call = rig.stub.Attach(programs_pb2.AttachRequest(programs=[programs_pb2.AttachTo(program_id=program_id)]))
        attached = Stream(call)
        await attached.next()
        assert isinstance(await ended(attached), OutputTooLarge)


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
        with pytest.raises(TartletError, match="#77"):
            await guest.call(Op.TOKENIZE, a=77, payload=b"x")
        assert await guest.call(Op.AVAILABLE_MODELS) == b'["fake"]'
        guest.end()
        assert await ended(stream) is None


async def test_too_many_commands_at_once_end_the_program(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        stream, guest = await native(rig, limits=common_pb2.Limits(commands_in_flight=10))
        guest.submit(*[SAMPLE] * 11)
        assert isinstance(await ended(stream), TooManyCommands)


async def test_a_queue_left_poisoned_fails_the_program(run_dir: Path) -> None:
    control = FakeControl(poison=QueuePoisoned(queue=0, ticket=1, cause="x"))
    async with running(run_dir, control) as rig:
        stream, guest = await native(rig)
        guest.submit(SAMPLE)
        await guest.wait()
        guest.end()
        assert isinstance(await ended(stream), QueuePoisoned)


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
        stream, guest = await native(rig)
        with pytest.raises(AssertionError, match=r"109|18"):
            await NativeProgram.connect(rig, b"wrong")
        guest.end()
        assert await ended(stream) is None


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
        assert HELLO == 1


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


# ---- ends ----


async def test_kill_deadline_and_disconnect_end_programs_wherever_they_are(run_dir: Path) -> None:
    looping = b"import asyncio\nasync def main():\n    await asyncio.sleep(100)\n"
    async with running(run_dir) as rig:
        stream = await launch(
            rig,
            launch_spec(PYTHON, looping, limits=common_pb2.Limits(deadline_s=0.1)),
            launch_spec(PYTHON, looping),
            launch_spec(PYTHON, looping, attach=False, tie=True),
            launch_spec(PYTHON, looping, attach=False),
        )
        ids = [(await stream.next()).program_id for _ in range(4)]
        reply = await rig.stub.Kill(programs_pb2.KillRequest(program_ids=[ids[1], "nobody"], reason="enough"))
        assert [e.number for e in reply.errors] == [0, UnknownProgram.number]
        assert [error_from_proto(e.error).name for e in await stream.rest() if e.kind == _Event.ENDED]  # type: ignore[union-attr]
        infos = {p.program_id: p for p in (await rig.stub.List(programs_pb2.ListRequest(all=True))).programs}
        assert isinstance(error_from_proto(infos[ids[0]].error), DeadlineExceeded)
        assert isinstance(error_from_proto(infos[ids[1]].error), ProgramKilled)
        assert isinstance(error_from_proto(infos[ids[2]].error), Disconnected)
        assert infos[ids[3]].state == "running"


async def test_a_client_that_disconnects_in_mid_stream_ends_only_what_is_tied(run_dir: Path) -> None:
    chatty = b"""
import asyncio, inferlet
async def main():
    while True:
        inferlet.send('z')
        await asyncio.sleep(0.01)
"""
    async with running(run_dir) as rig:
        stream = await launch(rig, launch_spec(PYTHON, chatty, tie=True), launch_spec(PYTHON, chatty))
        ids = [(await stream.next()).program_id for _ in range(2)]
        await stream.next()
        stream.call.cancel()

        async def state(program_id: str) -> str:
            listed = (await rig.stub.List(programs_pb2.ListRequest(all=True))).programs
            return str(next(p.state for p in listed if p.program_id == program_id))

        async with asyncio.timeout(5):
            while await state(ids[0]) != "failed":  # noqa: ASYNC110 - a client polls
                await asyncio.sleep(0.02)
        assert await state(ids[1]) == "running"


async def test_attach_resumes_from_an_offset_also_after_the_end(run_dir: Path) -> None:
    source = b"from inferlet import send\ndef main():\n    for i in range(5):\n        send(str(i))\n    return 'end'\n"
    async with running(run_dir) as rig:
        stream = await launch(rig, launch_spec(PYTHON, source))
        program_id = (await stream.next()).program_id
        whole = await stream.rest()
        for offset in (0, 3, 5, 99):
            request = programs_pb2.AttachRequest(
                programs=[
                    programs_pb2.AttachTo(program_id=program_id, offset=offset),
                    programs_pb2.AttachTo(program_id="nobody"),
                ]
            )
            attached = Stream(rig.stub.Attach(request))
            assert (await attached.next()).kind == _Event.ACCEPTED
            assert isinstance(error_from_proto((await attached.next()).error), UnknownProgram)
            again = await attached.rest()
            assert [e.data for e in again] == [e.data for e in whole][min(offset, 5) :]
            assert again[0].offset == min(offset, 5)


async def test_an_idempotency_key_starts_one_program(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        spec = launch_spec(PYTHON, b"def main(): return 7\n", idempotency_key="k")
        stream = await launch(rig, spec, spec)
        ids = {(await stream.next()).program_id for _ in range(2)}
        assert len(ids) == 1
        await stream.rest()
        again = await launch(rig, spec)
        assert (await again.next()).program_id in ids
        assert (await again.rest())[-1].data == b"7"
        rig.control.known_keys["elsewhere"] = "other-program"
        other = await launch(rig, launch_spec(PYTHON, b"def main(): pass\n", idempotency_key="elsewhere"))
        assert (await other.next()).program_id == "other-program"
        (end,) = await other.rest()  # nobody knows any more where it ran
        assert isinstance(error_from_proto(end.error), UnknownProgram)


# ---- control goes away ----


async def test_control_lost_ends_who_used_the_engine_and_nobody_else(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        used, guest = await native(rig)
        guest.submit(SAMPLE)
        await guest.wait()
        free, other = await native(rig)
        await rig.stop_control()
        assert isinstance(await ended(used), ControlLost)
        assert await other.call(Op.GET_ARG) == b"[]"
        other.submit(SAMPLE)  # waits for control
        waiting = asyncio.ensure_future(other.wait())
        early = asyncio.ensure_future(native(rig))  # so does a launch
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await rig.restart_control()
        assert (await waiting).records["a"].tolist() == [1]
        hello = rig.control.frames[0].hello
        assert free.seen[0].program_id in [p.program_id for p in hello.programs]
        other.end()
        assert await ended(free) is None
        late, last = await early
        last.end()
        assert await ended(late) is None


async def test_control_may_kill_a_program(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        stream, _ = await native(rig)
        handle = rig.control.frames[-1].starts[0].handle
        error = error_to_proto(OutOfPages(kind="KV pages", total=64))
        kill = control_pb2.ProgramKill(handle=handle, error=error)
        await rig.control.push(control_pb2.ControlFrame(kills=[kill]))
        assert isinstance(await ended(stream), OutOfPages)


@pytest.mark.parametrize(
    "reply",
    [
        control_pb2.ControlFrame(deliveries=control_pb2.Deliveries(handles=b"abc", records=b"x")),
        control_pb2.ControlFrame(deliveries=control_pb2.Deliveries(handles=bytes(4), records=b"\xff" * 32)),
        control_pb2.ControlFrame(models_changed=True, models=[control_pb2.ModelInfo(spec_json="{")]),
        control_pb2.ControlFrame(started=[control_pb2.StartReply(handle=77)]),
        control_pb2.ControlFrame(
            kills=[control_pb2.ProgramKill(handle=1, error=common_pb2.Error(number=201, fields_json=b"\xff{"))]
        ),
    ],
)
async def test_nonsense_from_control_does_not_end_the_role(run_dir: Path, reply: control_pb2.ControlFrame) -> None:
    async with running(run_dir) as rig:
        await rig.control.push(reply)
        await asyncio.sleep(0.3)
        stream = await launch(rig, launch_spec(PYTHON, b"def main(): return 1\n"))
        assert (await stream.rest())[-1].success


async def test_a_tokenizer_that_comes_late_is_waited_for_and_a_missing_one_is_a_failure(run_dir: Path) -> None:
    control = FakeControl(blob_gate=asyncio.Event())
    async with running(run_dir, control, cache_dir=run_dir / "cache") as rig:
        stream, guest = await native(rig)
        waiting = asyncio.ensure_future(guest.call(Op.TOKENIZE, a=0, payload=b"x"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        assert control.blob_gate is not None
        control.blob_gate.set()
        assert await waiting == b"x\0\0\0"
        guest.end()
        await ended(stream)


async def test_a_full_disk_ends_the_program_whose_journal_it_was(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        (run_dir / "journals" / f"slot-{os.getpid()}-0").symlink_to("/dev/full")
        source = b"import inferlet, asyncio\nasync def main():\n    await asyncio.sleep(0.05)\n    return 1\n"
        stream = await launch(rig, launch_spec(PYTHON, source))
        await stream.next()
        assert isinstance(await ended(stream), DiskFull)
        stream = await launch(rig, launch_spec(PYTHON, source))
        assert (await stream.rest())[-1].success


async def test_a_launch_with_huge_texts_neither_breaks_the_stream_nor_reaches_control(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        traced = launch_spec(
            PYTHON, b"def main(): return 1\n", trace={"x" * 10: "y" * (3 << 20), "tracestate": "t" * 9999}
        )
        assert (await (await launch(rig, traced)).rest())[-1].success
        wide = "\U0001f600" * 1000
        refused = await launch(rig, launch_spec(PYTHON, b"1", tenant=wide))
        assert isinstance(error_from_proto((await refused.next()).error), InvalidArgument)
        starts = [start for frame in rig.control.frames for start in frame.starts]
        assert all(start.ByteSize() < 8192 for start in starts)
        assert sum(frame.HasField("hello") for frame in rig.control.frames) == 1  # the stream is still the first one


def test_starts_are_cut_to_what_a_message_carries() -> None:
    starts = [control_pb2.ProgramStart(handle=i, name="x" * 10_000) for i in range(1000)]
    left, frames = starts, 0
    while left:
        fit = how_many_fit(left)
        assert sum(s.ByteSize() for s in left[:fit]) < 3 << 20
        left, frames = left[fit:], frames + 1
    assert frames >= 4
