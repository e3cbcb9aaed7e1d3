"""Wrong arguments to each call that the runtime answers: an error of that call, for that program alone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import given, settings

from tartlet_common.abi import Event, Flag, Op
from tartlet_common.errors.base import TartletError
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_protos import programs_pb2
from tartlet_runtime.budget.ledger import Use
from tests.malformed import Malformed, allowed, records
from tests.run_directory import run_directory
from tests.runtime.harness import FOREVER, NativeProgram, Rig, native, running
from tools.calls.layout import Answers, By
from tools.calls.registry import CALLS

OPS = [op for op, call in CALLS.items() if call.by is By.RUNTIME]
WAITS = {Op.RECEIVE}
"""Calls whose answer comes with a message."""
PROGRAMS_OWN = (Use.PROGRAMS, Use.INBOXES, Use.REQUESTS, Use.HISTORIES)
"""Memory that is given back when a program ends."""
ENDS = {Op.CONTINUE}
"""Calls that take effect when the program ends."""


class Loop:
    """A runtime on an event loop of its own, which tests of random arguments share."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.rig: Rig | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)


@pytest.fixture(scope="module")
def shared() -> Iterator[Loop]:
    with run_directory() as directory:
        loop = Loop()
        stop = asyncio.Event()

        async def serve(ready: asyncio.Future[Rig]) -> None:
            async with running(Path(directory)) as rig:
                ready.set_result(rig)
                await stop.wait()

        async def begin() -> tuple[asyncio.Task[None], Rig]:
            ready: asyncio.Future[Rig] = asyncio.get_running_loop().create_future()
            task = asyncio.ensure_future(serve(ready))
            return task, await ready

        task, loop.rig = loop.run(begin())
        yield loop

        async def end() -> None:
            stop.set()
            await task

        loop.run(end())
        loop.loop.call_soon_threadsafe(loop.loop.stop)
        loop.thread.join(10)


async def ended(stream: Any) -> TartletError | None:
    """How a program has ended."""
    events = await stream.rest()
    assert events[-1].kind == programs_pb2.ProgramEvent.ENDED
    return error_from_proto(events[-1].error)


async def told(guest: NativeProgram, op: Op, malformed: Malformed) -> tuple[int, int] | None:
    """Gives a malformed record and then a good one. Returns the event and the error of the first one's answer."""
    asks = CALLS[op].answers is not Answers.NEVER
    fields = malformed._asdict()
    guest.submit(
        (op, {**fields, "ticket": 1, "flags": int(Flag.AWAIT) if asks else 0}),
        (Op.GET_VERSION, {"ticket": 2, "flags": int(Flag.AWAIT)}),
    )
    found, answered = None, False
    while not answered or (asks and found is None and op not in WAITS):
        batch = await guest.wait(0, FOREVER)
        for row in batch.records.tolist():
            if row[2] == 1:
                assert found is None, "answered twice"
                found = (row[0], row[4])
            answered |= row[2] == 2
    return found


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_it_fails_alone_with_an_error_that_the_call_has(op: Op, shared: Loop) -> None:
    call, rig = CALLS[op], shared.rig
    assert rig is not None

    async def one(malformed: Malformed) -> None:
        stream, guest = await native(rig)
        try:
            answer = await told(guest, op, malformed)
        except (TartletError, asyncio.IncompleteReadError):  # a call without an answer that fails ends its program
            assert call.answers is Answers.NEVER
            error = await ended(stream)
            assert error is not None
            assert error.number in allowed(call), error
            return
        if answer is not None and answer[0] == Event.FAILURE:
            assert answer[1] in allowed(call), answer
        guest.end()
        error = await ended(stream)
        assert error is None or (op in ENDS and error.number in allowed(call)), error

    @settings(max_examples=20, deadline=None, database=None)
    @given(records(call))
    def fails_alone(malformed: Malformed) -> None:
        shared.run(one(malformed))

    fails_alone()


def test_nothing_is_left_of_all_that(shared: Loop) -> None:
    rig = shared.rig
    assert rig is not None

    async def good() -> tuple[list[programs_pb2.ProgramInfo], dict[str, int]]:
        stream, guest = await native(rig)
        assert await guest.call(Op.GET_VERSION)
        guest.end()
        assert await ended(stream) is None
        reply = await rig.stub.List(programs_pb2.ListRequest())
        taken = (await rig.stub.RuntimeState(programs_pb2.RuntimeStateRequest())).memory_taken_bytes
        return list(reply.programs), {use: taken[use] for use in PROGRAMS_OWN}

    assert shared.run(good()) == ([], dict.fromkeys(PROGRAMS_OWN, 0))
