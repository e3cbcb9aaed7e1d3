"""What a parent is told of its children, with streams of children that these tests write."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tartlet_common.abi import ChildEvent, Flag, Op, Record
from tartlet_common.errors.registry import (
    InvalidArgument,
    MemoryBudgetExceeded,
    NotAllowed,
    ProgramFailed,
    ResourceQuotaExceeded,
    Superseded,
    TartletError,
    Unavailable,
    UnknownInferlet,
    UnknownResource,
)
from tartlet_common.rpc.error_proto import error_to_proto
from tartlet_protos import programs_pb2
from tartlet_runtime.budget.ledger import Ledger, Use
from tartlet_runtime.children import child_ops
from tartlet_runtime.children.asked import Asked
from tartlet_runtime.children.child_ops import ChildOps
from tartlet_runtime.children.children import HELD_BYTES, Children
from tests.runtime.harness import until

_Event = programs_pb2.ProgramEvent


class FakeStream:
    """A child's events, which tests add."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[programs_pb2.ProgramEvent | None] = asyncio.Queue()
        self.closed = False
        self.read = 0

    def add(self, kind: int, offset: int = 0, data: bytes = b"", error: TartletError | None = None) -> None:
        event = _Event(kind=kind, offset=offset, data=data, error=error_to_proto(error), program_id="child")  # type: ignore[arg-type]
        self.events.put_nowait(event)
        if kind in (_Event.ENDED, _Event.REJECTED):
            self.events.put_nowait(None)

    async def messages(self) -> AsyncIterator[programs_pb2.ProgramEvents]:
        while (event := await self.events.get()) is not None:
            self.read += 1
            yield programs_pb2.ProgramEvents(events=[event])

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeBirths:
    """Starts nothing, and notes what is asked for."""

    streams: list[FakeStream] = field(default_factory=list)
    followed: list[int] = field(default_factory=list)
    sent: list[tuple[bytes, int]] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    away: int = 0
    """How many messages meet no runtime."""
    forbids: bool = False

    def check(self, parent: Any, asked: Asked) -> None:
        if self.forbids:
            raise NotAllowed(what="the inferlet")

    def launch(self, parent: Any, asked: Asked, ticket: int) -> FakeStream:
        self.streams.append(FakeStream())
        return self.streams[-1]

    def follow(self, parent: Any, program_id: str, offset: int) -> FakeStream:
        self.followed.append(offset)
        return self.launch(None, Asked(), 0)

    async def send(self, parent: Any, program_id: str, message: bytes, ticket: int) -> None:
        await asyncio.sleep(0)
        if self.away:
            self.away -= 1
            raise Unavailable(what="its runtime", detail="away")
        self.sent.append((message, ticket))

    async def kill(self, parent: Any, program_id: str, reason: str) -> None:
        self.killed.append(reason)


@dataclass
class Parent:
    """A program that notes what it is told."""

    children: Children = field(default_factory=Children)
    max_children: int = 4
    told: list[Any] = field(default_factory=list)
    ended: TartletError | None = None

    @property
    def inbox(self) -> Parent:
        return self

    def leave(self, action: Callable[[], None]) -> None:
        action()

    def result(self, ticket: int, a: int, b: int, payload: bytes) -> None:
        self.told.append((ticket, a, b, payload))

    def refuse(self, record: Record, error: TartletError) -> None:
        self.told.append((record.ticket, error))

    def end(self, error: TartletError | None) -> None:
        self.ended = error


@dataclass
class Rig:
    ops: ChildOps
    births: FakeBirths
    parent: Parent
    ledger: Ledger

    def do(self, op: Callable[..., None], ticket: int, payload: bytes | None = b"", *, a: int = 1, b: int = 0) -> None:
        record = Record(int(Op.SPAWN), int(Flag.AWAIT), ticket, 0, a, b, 0, 0, 0)
        op(self.parent, record, *(() if payload is None else (payload,)))

    async def child(self) -> FakeStream:
        self.do(self.ops.spawn, 1, b"{}")
        stream = self.births.streams[-1]
        stream.add(_Event.ACCEPTED)
        await until(lambda: self.parent.told == [(1, 1, 0, b"child")])
        self.parent.told.clear()
        return stream

    async def told(self, *wanted: Any) -> None:
        await until(lambda: self.parent.told == [*wanted])
        self.parent.told.clear()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_ops, "_AGAIN_S", 0.001)


@contextlib.asynccontextmanager
async def rigged() -> AsyncIterator[Rig]:
    tasks: list[asyncio.Task[None]] = []

    def spawn(work: Any) -> asyncio.Task[None]:
        tasks.append(asyncio.ensure_future(work))
        return tasks[-1]

    ledger = Ledger(1 << 20)
    made = Rig(ChildOps(spawn, ledger), FakeBirths(), Parent(), ledger)
    made.ops.births = made.births
    yield made
    made.parent.children.close()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert ledger.taken[Use.INBOXES] == 0, "the memory of unread messages is given back"
    assert all(stream.closed for stream in made.births.streams)


async def test_messages_and_the_result_come_in_order_when_they_are_asked_for() -> None:
    async with rigged() as rig:
        stream = await rig.child()
        rig.do(rig.ops.next, 2, None)
        stream.add(_Event.STDOUT, 0, b"not for the parent")
        stream.add(_Event.MESSAGE, 1, b"one")
        await rig.told((2, ChildEvent.MESSAGE, 2, b"one"))
        stream.add(_Event.MESSAGE, 2, b"two")
        stream.add(_Event.ENDED, 3, b"done")
        await until(lambda: stream.closed)
        rig.do(rig.ops.next, 3, None, b=2)
        rig.do(rig.ops.next, 4, None, b=3)
        await rig.told((3, ChildEvent.MESSAGE, 3, b"two"), (4, ChildEvent.RESULT, 4, b"done"))
        with pytest.raises(UnknownResource):
            rig.do(rig.ops.next, 5, None, b=4)


async def test_an_error_is_told_with_its_number_and_fields() -> None:
    async with rigged() as rig:
        stream = await rig.child()
        error = ProgramFailed(detail="ValueError", traceback="")
        stream.add(_Event.ENDED, 0, error=error)
        rig.do(rig.ops.next, 2, None)
        told = json.dumps({"number": error.number, "fields": error.fields}, separators=(",", ":")).encode()
        await rig.told((2, ChildEvent.ERROR, 1, told))


async def test_a_refused_child_counts_nowhere() -> None:
    async with rigged() as rig:
        rig.do(rig.ops.spawn, 1, b'{"children": 3}')
        with pytest.raises(ResourceQuotaExceeded):
            rig.do(rig.ops.spawn, 2, b"{}", a=2)
        rig.births.streams[-1].add(_Event.REJECTED, error=UnknownInferlet(inferlet="x"))
        await until(lambda: bool(rig.parent.told))
        (told,) = rig.parent.told
        assert isinstance(told[1], UnknownInferlet)
        rig.do(rig.ops.spawn, 3, b'{"children": 3}')
        with pytest.raises(InvalidArgument):
            rig.do(rig.ops.spawn, 4, b"{}", a=1)
        rig.births.forbids = True
        with pytest.raises(NotAllowed):
            rig.do(rig.ops.spawn, 5, b"{}", a=5)


async def test_a_launch_that_meets_no_control_is_asked_for_again_and_other_refusals_are_not() -> None:
    async with rigged() as rig:
        rig.do(rig.ops.spawn, 1, b"{}")
        away = Unavailable(what="control", detail="away")
        for attempt in range(3):
            await until(lambda wanted=attempt + 1: len(rig.births.streams) == wanted)  # type: ignore[misc]
            rig.births.streams[-1].add(_Event.REJECTED, error=away)
        await until(lambda: len(rig.births.streams) == 4)
        rig.births.streams[-1].add(_Event.ACCEPTED)
        await rig.told((1, 1, 0, b"child"))
        assert rig.births.followed == []
        rig.births.streams[-1].add(_Event.ENDED)


async def test_a_launch_that_meets_no_control_for_long_is_refused_and_counts_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child_ops, "_ATTEMPTS", 2)
    async with rigged() as rig:
        rig.do(rig.ops.spawn, 1, b'{"detached": true}')
        for attempt in range(2):
            await until(lambda wanted=attempt + 1: len(rig.births.streams) == wanted)  # type: ignore[misc]
            rig.births.streams[-1].add(_Event.REJECTED, error=Unavailable(what="control", detail="away"))
        await until(lambda: bool(rig.parent.told))
        ((ticket, error),) = rig.parent.told
        assert (ticket, type(error)) == (1, Unavailable)
        assert (rig.parent.children.started, rig.parent.children.detached) == (0, 0)


async def test_a_child_that_moves_is_followed_from_where_it_was_read() -> None:
    async with rigged() as rig:
        stream = await rig.child()
        stream.add(_Event.MESSAGE, 0, b"one")
        stream.add(_Event.ENDED, 1, error=Superseded(program="child"))
        await until(lambda: rig.births.followed == [1])
        rig.births.streams[-1].add(_Event.REJECTED, error=Unavailable(what="its runtime", detail="away"))
        await until(lambda: rig.births.followed == [1, 1])
        for number, text in enumerate((b"one", b"two")):
            rig.births.streams[-1].add(_Event.MESSAGE, number, text)
        rig.do(rig.ops.next, 2, None)
        await rig.told((2, ChildEvent.MESSAGE, 1, b"one"))
        rig.do(rig.ops.next, 3, None, b=1)
        await rig.told((3, ChildEvent.MESSAGE, 2, b"two"))


async def test_a_child_is_read_no_faster_than_its_parent_asks() -> None:
    async with rigged() as rig:
        stream = await rig.child()
        for number in range(6):
            stream.add(_Event.MESSAGE, number, bytes(HELD_BYTES // 2))
        await until(lambda: stream.read == 4)  # the answer, and three messages, of which two fit
        await asyncio.sleep(0.01)
        assert stream.read == 4
        rig.do(rig.ops.next, 2, None)
        await until(lambda: stream.read == 5)
        rig.ledger.take(Use.PROGRAMS, rig.ledger.free_bytes)
        rig.do(rig.ops.next, 3, None, b=1)
        rig.do(rig.ops.next, 4, None, b=2)
        stream.add(_Event.MESSAGE, 6, bytes(4 * HELD_BYTES))
        for number in range(5, 8):
            rig.do(rig.ops.next, number, None, b=number - 2)
            await asyncio.sleep(0)
        await until(lambda: isinstance(rig.parent.ended, MemoryBudgetExceeded))
        rig.ledger.give(Use.PROGRAMS, rig.ledger.taken[Use.PROGRAMS])


async def test_messages_arrive_in_order_also_when_the_first_meets_no_runtime() -> None:
    async with rigged() as rig:
        await rig.child()
        rig.births.away = 2
        for ticket in (2, 3, 4):
            rig.do(rig.ops.send, ticket, str(ticket).encode())
        rig.do(rig.ops.kill, 5, b"enough")
        await until(lambda: len(rig.parent.told) == 4)
        assert rig.births.sent == [(b"2", 2), (b"3", 3), (b"4", 4)]
        assert rig.births.killed == ["enough"]
        with pytest.raises(UnknownResource):
            rig.do(rig.ops.send, 6, b"", a=9)


async def test_a_program_that_begins_again_asks_behind_what_its_journal_has() -> None:
    async with rigged() as rig:
        children = rig.parent.children
        asked = b'{"children": 2}'
        children.remember(asked, Record(Op.SPAWN, 1, 1, 0, 1, 0, 0, 0, len(asked)), 1, 0, b"child")
        children.remember(b"", Record(Op.CHILD_NEXT, 1, 2, 0, 1, 0, 0, 0, 0), ChildEvent.MESSAGE, 5, b"x")
        children.remember(b"{}", Record(Op.SPAWN, 1, 3, 0, 2, 0, 0, 0, 2), 2, 0, b"other")
        children.remember(b"", Record(Op.CHILD_NEXT, 1, 4, 0, 2, 0, 0, 0, 0), ChildEvent.RESULT, 1, b"x")
        assert children.started == 4
        rig.do(rig.ops.next, 5, None, b=5)
        rig.ops.resume(rig.parent)
        await until(lambda: rig.births.followed == [5])
        rig.births.streams[-1].add(_Event.ENDED, 5, b"done")
        await rig.told((5, ChildEvent.RESULT, 6, b"done"))


async def test_a_forks_recorded_children_are_out_of_its_reach() -> None:
    async with rigged() as rig:
        record = Record(int(Op.SPAWN), int(Flag.AWAIT), 1, 0, 1, 0, 0, 0, 2)
        rig.parent.children.remember(b"{}", record, 1, 0, b"somebody", is_foreign=True)
        assert [child.number for child in rig.parent.children.left] == [1], "they keep the fork from going on live"
        for op, payload in ((rig.ops.kill, b""), (rig.ops.send, b"hey"), (rig.ops.next, None)):
            with pytest.raises(UnknownResource):
                rig.do(op, 2, payload)
        assert (rig.births.killed, rig.births.sent, rig.births.followed) == ([], [], [])
