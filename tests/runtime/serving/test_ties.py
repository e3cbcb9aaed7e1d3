"""A program and the client of its `run`: which client that is, how long the program waits for it, and what ends it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tartlet_common.errors.registry import Disconnected, TartletError
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_protos import programs_pb2
from tartlet_runtime.ties.tie import Tie
from tests.runtime.harness import NativeProgram, Rig, Stream, launch_spec, running

GRACE_S = 1.0
ENDED = programs_pb2.ProgramEvent.ENDED


class Clock:
    """Calls functions when the test lets time pass, and stands for a program's output."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[Timer] = []
        self.expects = self.has_readers = False

    def later(self, seconds: float, call: Any) -> Timer:
        self.timers.append(Timer(self.now_s + seconds, call))
        return self.timers[-1]

    def pass_by(self, seconds: float) -> None:
        self.now_s += seconds
        for timer in [timer for timer in self.timers if timer.at_s <= self.now_s]:
            self.timers.remove(timer)
            timer.call()

    def expect(self) -> None:
        self.expects = True

    def expect_no_more(self) -> None:
        self.expects = False


class Timer:
    def __init__(self, at_s: float, call: Any) -> None:
        self.at_s, self.call = at_s, call

    def cancel(self) -> None:
        self.call = lambda: None


_STEPS = st.lists(st.sampled_from(["call", "other", "break", "leave", "leave other", "wait a bit", "wait long"]))


@given(steps=_STEPS)
def test_a_program_ends_when_its_client_leaves_or_is_away_for_longer_than_the_grace(steps: list[str]) -> None:
    clock, ends = Clock(), list[TartletError]()
    tie = Tie(clock, ends.append, clock.later)
    assert tie.hold(b"mine")
    calls, away_s, left = 1, 0.0, False
    for step in steps:
        match step:
            case "call":
                assert tie.hold(b"mine")
                calls, away_s = calls + 1, 0.0
            case "other":
                assert not tie.hold(b"another")
            case "break" if calls:
                tie.let_go(GRACE_S)
                calls -= 1
            case "leave":
                tie.leave(b"mine")
                left = True
            case "leave other":
                tie.leave(b"another")
            case "wait a bit" | "wait long":
                seconds = GRACE_S * (0.4 if step == "wait a bit" else 1.5)
                clock.pass_by(seconds)
                away_s += 0.0 if calls else seconds
        assert clock.expects or calls or ends or away_s >= GRACE_S, "meanwhile the program may stand still"
        assert bool(ends) == (left or (not calls and away_s >= GRACE_S)), (step, calls, away_s)
        if ends:
            assert isinstance(ends[0], Disconnected)
            return


def test_a_program_of_a_client_without_a_key_ends_with_its_last_call() -> None:
    clock, ends = Clock(), list[TartletError]()
    tie = Tie(clock, ends.append, clock.later)
    assert tie.hold(b"")
    tie.leave(b"")
    assert not ends
    tie.let_go(0.0)
    assert isinstance(ends[0], Disconnected)


async def _tied(rig: Rig, key: bytes = b"mine", **fields: Any) -> tuple[Stream, NativeProgram]:
    spec = launch_spec(tie=True, **fields)
    spec.client = key
    stream = Stream(rig.stub.Launch(programs_pb2.LaunchRequest(specs=[spec])))
    return stream, await NativeProgram.connect(rig, (await stream.next()).data)


def _attach(rig: Rig, program_id: str, key: bytes = b"mine") -> Stream:
    target = programs_pb2.AttachTo(program_id=program_id, tie=True, client=key)
    return Stream(rig.stub.Attach(programs_pb2.AttachRequest(programs=[target])))


async def _leave(rig: Rig, program_id: str, key: bytes) -> None:
    items = [programs_pb2.LeaveItem(program_id=program_id, client=key)]
    await rig.stub.Leave(programs_pb2.LeaveRequest(items=items))


async def _end_of(watcher: Stream) -> TartletError | None:
    (end,) = [event for event in await watcher.rest() if event.kind == ENDED]
    return error_from_proto(end.error)


@pytest.mark.parametrize("how", ["stays away", "leaves", "comes back", "comes back twice"])
async def test_a_client_whose_call_breaks_may_come_back(run_dir: Path, how: str) -> None:
    """Someone else's readers and calls don't count, even of another client with a key of its own."""
    async with running(run_dir, client_grace_s=GRACE_S) as rig:
        stream, guest = await _tied(rig)
        program_id = stream.seen[0].program_id
        watcher = _attach(rig, program_id, b"another")
        await watcher.next()
        loop = asyncio.get_running_loop()
        broke_s = loop.time()
        stream.call.cancel()
        await _leave(rig, program_id, b"another")
        if how == "leaves":
            await _leave(rig, program_id, b"mine")
        elif how.startswith("comes back"):
            again = _attach(rig, program_id)
            await again.next()
            if how == "comes back twice":
                again.call.cancel()
                await asyncio.sleep(0.6 * GRACE_S)  # the first time's grace would be over before the second's
                again = _attach(rig, program_id)
                await again.next()
            await asyncio.sleep(1.5 * GRACE_S)
            guest.end(text="done")
            assert (await again.rest())[-1].data == b"done"
            return
        assert isinstance(await _end_of(watcher), Disconnected)
        took_s = loop.time() - broke_s
        assert took_s < GRACE_S if how == "leaves" else GRACE_S - 0.05 <= took_s < GRACE_S + 2.0


async def test_the_program_of_a_call_that_broke_before_its_answer_ends_at_once(run_dir: Path) -> None:
    async with running(run_dir, client_grace_s=60.0) as rig:
        rig.control.hold_starts = True
        spec = launch_spec(tie=True)
        spec.client = b"mine"
        call = rig.stub.Launch(programs_pb2.LaunchRequest(specs=[spec]))
        await asyncio.wait_for(_until_listed(rig), 10)
        call.cancel()
        async with asyncio.timeout(10):
            while (await rig.stub.List(programs_pb2.ListRequest())).programs:  # noqa: ASYNC110 - a client polls
                await asyncio.sleep(0.02)


async def test_a_client_that_comes_back_keeps_its_grace_while_other_answers_are_missing(run_dir: Path) -> None:
    """The answer of the other program, which is looked for elsewhere, comes before that of the client's own."""
    async with running(run_dir, client_grace_s=60.0) as rig:
        stream, guest = await _tied(rig)
        program_id = stream.seen[0].program_id
        watcher = _attach(rig, program_id, b"another")
        await watcher.next()
        rig.control.returning = True
        targets = [
            programs_pb2.AttachTo(program_id="elsewhere"),
            programs_pb2.AttachTo(program_id=program_id, tie=True, client=b"mine"),
        ]
        both = rig.stub.Attach(programs_pb2.AttachRequest(programs=targets))
        await asyncio.sleep(0.2)
        stream.call.cancel()
        await asyncio.sleep(0.2)
        both.cancel()
        await asyncio.sleep(0.2)
        guest.end(text="done")
        assert (await watcher.rest())[-1].data == b"done"


async def _until_listed(rig: Rig) -> None:
    while not (await rig.stub.List(programs_pb2.ListRequest())).programs:  # noqa: ASYNC110 - a client polls
        await asyncio.sleep(0.02)


async def test_a_call_that_leaves_too_many_programs_is_refused(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await rig.stub.Leave(programs_pb2.LeaveRequest(items=[programs_pb2.LeaveItem()] * 5000))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
