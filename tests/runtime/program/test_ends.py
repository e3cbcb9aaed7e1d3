"""How programs end, by whom, and what becomes of them when control goes away."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tartlet_common.abi import Flag, Op
from tartlet_common.errors.registry import (
    DeadlineExceeded,
    Disconnected,
    DiskFull,
    InvalidArgument,
    OutOfPages,
    OutputTooLarge,
    Overloaded,
    ProgramKilled,
    UnknownProgram,
)
from tartlet_common.rpc.error_proto import error_from_proto, error_to_proto
from tartlet_protos import common_pb2, control_pb2, programs_pb2
from tartlet_runtime.link.announcing import how_many_fit
from tartlet_runtime.program.driver import Driver
from tartlet_runtime.program.program import Program
from tests.runtime.bystanders import SAMPLE, ended, launch
from tests.runtime.fake_control import FakeControl
from tests.runtime.harness import PYTHON, NativeProgram, Stream, launch_spec, native, running, until

_Event = programs_pb2.ProgramEvent
pytestmark = pytest.mark.usefixtures("python_component")


# ---- ends ----


async def test_an_end_waits_for_no_other_program_to_begin(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        stream, guest = await native(rig)
        rig.control.hold_starts = True
        await launch(rig, launch_spec(PYTHON, b"async def main(): pass\n", attach=False))
        await until(lambda: any(frame.starts for frame in rig.control.frames[2:]))  # the other program waits to begin
        guest.end(text="done")
        async with asyncio.timeout(0.4):
            (last,) = await stream.rest()
        assert (last.kind, last.data, last.success) == (_Event.ENDED, b"done", True)


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
        while len(stream.seen) < 3:  # both are accepted, and one is heard of
            await stream.next()
        ids = [event.program_id for event in stream.seen if event.kind == _Event.ACCEPTED]
        assert len(ids) == 2
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
            events = await Stream(rig.stub.Attach(request)).rest()
            (unknown,) = (e for e in events if e.index == 1)
            assert isinstance(error_from_proto(unknown.error), UnknownProgram)
            accepted, *again = (e for e in events if e.index == 0)
            assert accepted.kind == _Event.ACCEPTED
            assert [e.data for e in again] == [e.data for e in whole][min(offset, 5) :]
            assert again[0].offset == min(offset, 5)


async def test_a_program_that_one_call_names_twice_is_told_at_both_places(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        source = b"from inferlet import receive\nasync def main():\n    print(await receive())\n    print('x' * 2000)\n"
        spec = launch_spec(PYTHON, source, idempotency_key="k")
        stream = await launch(rig, spec, spec)
        name = (await stream.next()).program_id
        await stream.next()
        await rig.stub.Send(programs_pb2.SendRequest(items=[programs_pb2.SendItem(program_id=name, message=b"1")]))
        events = await stream.rest()
        first, second = ([(e.kind, e.offset, e.data) for e in events if e.index == i] for i in range(2))
        assert first == second
        assert [kind for kind, _, _ in first].count(_Event.ENDED) == 1
        kept = rig.stub.Attach(programs_pb2.AttachRequest(programs=[programs_pb2.AttachTo(program_id=name)] * 2))
        again = [event async for message in kept for event in message.events if event.kind != _Event.ACCEPTED]
        assert sorted((e.index, e.offset) for e in again) == sorted((e.index, e.offset) for e in events)


async def test_a_client_that_attached_twice_is_gone_when_it_goes(run_dir: Path) -> None:
    async with running(run_dir, output_bytes=1024) as rig:
        source = b"from inferlet import receive\nasync def main():\n    await receive()\n    print('x' * 2000)\n"
        stream = await launch(rig, launch_spec(PYTHON, source, attach=False))
        name = (await stream.next()).program_id
        twice = rig.stub.Attach(programs_pb2.AttachRequest(programs=[programs_pb2.AttachTo(program_id=name)] * 2))
        await twice.read()
        twice.cancel()
        await asyncio.sleep(0.1)
        await rig.stub.Send(programs_pb2.SendRequest(items=[programs_pb2.SendItem(program_id=name, message=b"1")]))
        states: list[programs_pb2.ProgramInfo] = []
        async with asyncio.timeout(5.0):
            while not states or states[0].state == "running":
                states = list((await rig.stub.List(programs_pb2.ListRequest(all=True))).programs)
        assert isinstance(error_from_proto(states[0].error), OutputTooLarge)


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


async def test_a_new_control_gets_the_histories_of_those_who_used_the_engine(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        used, guest = await native(rig)
        guest.submit(SAMPLE)
        await guest.wait()
        free, other = await native(rig)
        await rig.stop_control()
        assert await other.call(Op.GET_ARG) == b"[]"
        other.submit(SAMPLE)  # waits for control
        waiting = asyncio.ensure_future(other.wait())
        early = asyncio.ensure_future(native(rig))  # so does a launch
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await rig.restart_control()
        assert (await waiting).records["a"].tolist() == [1]
        hello = rig.control.frames[0].hello
        assert {p.program_id: p.history for p in hello.programs} == {s.seen[0].program_id: True for s in (used, free)}
        parts = [part for frame in rig.control.frames for part in frame.histories]
        told = [control_pb2.ProgramHistory.FromString(part.data) for part in parts if not part.more]
        assert [(bool(h.commands), bool(h.answers)) for h in told] == [(True, True), (True, False)]
        guest.end()
        assert await ended(used) is None
        other.end()
        assert await ended(free) is None
        late, last = await early
        last.end()
        assert await ended(late) is None


async def test_who_only_waits_for_a_first_turn_is_announced_and_who_has_no_answer_is_asked_for_again(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[Any] = []
    async with running(run_dir) as rig:
        with monkeypatch.context() as patched:
            patched.setattr(Driver, "begin", lambda _driver, program: waiting.append(program))
            answered = await launch(rig, launch_spec(idempotency_key="a"))
            await until(lambda: bool(waiting))
            rig.control.hold_starts = True
            unanswered = await launch(rig, launch_spec(idempotency_key="b"))
            await until(lambda: sum(len(f.starts) for f in rig.control.frames) == 2)
            await rig.restart_control()
            await until(lambda: len(waiting) == 2)
        first, second = waiting
        assert [(p.program_id, p.running) for p in rig.control.frames[0].hello.programs] == [(first.program_id, True)]
        starts = [start for frame in rig.control.frames for start in frame.starts]
        assert [(p.program_id, p.running) for p in starts] == [(second.program_id, False)]
        for stream, program in ((answered, first), (unanswered, second)):
            program.run()
            guest = await NativeProgram.connect(rig, (await stream.next()).data)
            guest.submit(SAMPLE)
            assert (await guest.wait()).records["a"].tolist() == [1]
            guest.end()
            assert await ended(stream) is None


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


async def test_what_is_forgotten_of_ended_programs_is_free_at_once(run_dir: Path) -> None:
    def alive() -> int:
        return sum(type(thing) is Program for thing in gc.get_objects())

    async with running(run_dir, ended_kept=2) as rig:
        gc.collect()
        gc.disable()
        try:
            before = alive()
            for _ in range(12):
                stream = await launch(rig, launch_spec(PYTHON, b"def main():\n    print('x' * 100)\n"))
                assert (await stream.rest())[-1].success
            await until(lambda: alive() - before <= 3)  # the last one's call may be about to end
        finally:
            gc.enable()


async def test_a_large_launch_leaves_no_more_than_its_output(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        source = b"def main(): return 'done'\n"
        stream = await launch(rig, launch_spec(PYTHON, source, filename="large.py", args=["\x01" * (900 << 10)]))
        assert (await stream.rest())[-1].success
        programs = [thing for thing in gc.get_objects() if type(thing) is Program]
        (program,) = [each for each in programs if each.spec.filename == "large.py"]
        assert (program.spec.source, program.spec.args) == (b"", ())


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


async def test_streams_beyond_a_runtimes_limit_are_refused_until_others_end(run_dir: Path) -> None:
    async with running(run_dir, capacity=4) as rig:
        stream, guest = await native(rig)
        wanted = [programs_pb2.AttachTo(program_id=stream.seen[0].program_id)] * 2

        async def attach() -> Stream:
            return Stream(rig.stub.Attach(programs_pb2.AttachRequest(programs=wanted)))

        followers = [await attach() for _ in range(255)]  # and the launch
        for follower in followers:
            assert (await follower.next()).kind == _Event.ACCEPTED
        for call, items in ((await attach(), 2), (await launch(rig, launch_spec()), 1)):
            refused = await call.rest()
            assert [e.kind for e in refused] == [_Event.REJECTED] * items
            errors = [error_from_proto(e.error) for e in refused]
            assert [type(error) for error in errors] == [Overloaded] * items
            assert [error.fields["limit"] for error in errors if error] == [256] * items
        followers.pop().call.cancel()
        async with asyncio.timeout(5):
            while (await (await attach()).next()).kind != _Event.ACCEPTED:  # the one that goes frees a place
                pass
        guest.end(text="done")
        assert (await followers[0].rest())[-1].kind == _Event.ENDED


async def test_a_launch_outlives_the_run_that_it_joined_by_its_key(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        for launched_too in (True, False):
            key = f"k{launched_too}"
            tied = await launch(rig, launch_spec(idempotency_key=key, tie=True))
            guest = await NativeProgram.connect(rig, (await tied.next()).data)
            if launched_too:
                joined = await launch(rig, launch_spec(idempotency_key=key, attach=False))
                assert (await joined.next()).program_id == tied.seen[0].program_id
            tied.call.cancel()
            guest.submit((Op.RECEIVE, {"flags": Flag.AWAIT, "ticket": 1}))
            if not launched_too:
                with pytest.raises(Disconnected):
                    await guest.wait()
                continue
            item = programs_pb2.SendItem(program_id=tied.seen[0].program_id, message=b"on")
            await asyncio.sleep(0.2)  # it could end meanwhile
            await rig.stub.Send(programs_pb2.SendRequest(items=[item]))
            assert (await guest.wait()).payload == b"on"


@pytest.mark.parametrize("call", ["Launch", "Attach", "Send", "Kill"])
async def test_calls_of_too_many_items_are_refused_before_any_is_looked_at(run_dir: Path, call: str) -> None:
    many = 100_000
    requests: dict[str, Any] = {
        "Launch": programs_pb2.LaunchRequest(specs=[programs_pb2.LaunchSpec()] * many),
        "Attach": programs_pb2.AttachRequest(programs=[programs_pb2.AttachTo()] * many),
        "Send": programs_pb2.SendRequest(items=[programs_pb2.SendItem()] * many),
        "Kill": programs_pb2.KillRequest(program_ids=[""] * many),
    }
    async with running(run_dir) as rig:
        answer = getattr(rig.stub, call)(requests[call])
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await (answer.read() if call in ("Launch", "Attach") else answer)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "tartlet-error-bin" in dict(refused.value.trailing_metadata() or ())
