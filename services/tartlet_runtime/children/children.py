"""One program's children, by the numbers that the program chose, and what it isn't told of them yet."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tartlet_common.abi import ChildEvent, Op, Record
from tartlet_common.errors.registry import InvalidArgument, ResourceQuotaExceeded, TooManyCommands, UnknownResource
from tartlet_runtime.children.asked import Asked

HELD_BYTES: Final = 256 << 10
"""What of one child's messages is read ahead of its parent; a child with more stands still, as for a slow client."""
MAX_SENDINGS: Final = 256
"""Messages to children, and requests to kill them, that one program may have under way."""


class Told(NamedTuple):
    """What a CHILD_NEXT answers."""

    kind: int
    offset: int
    """Behind it in the child's output."""
    data: bytes


@dataclass(eq=False, slots=True)
class Child:
    """One child."""

    number: int
    program_id: str = ""  # "" until its launch is answered
    reached: int = 0
    """The offset in its output up to which its parent's runtime has read."""
    events: deque[Told] = field(default_factory=deque)
    """What its parent is to be told, in order."""
    held_bytes: int = 0
    """Bytes of these."""
    ticket: int = 0
    """The CHILD_NEXT that waits for the next one; 0: none does."""
    is_foreign: bool = False
    """Whether another run has started it: a fork's recorded run. Nothing can be sent to it, and it can't be killed."""
    is_over: bool = False
    """Whether its parent was told its end."""
    task: asyncio.Task[None] | None = None
    """Reads its output."""
    room: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while more may be read ahead."""
    sending: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by what its parent sends, so that messages arrive in order."""

    def add(self, told: Told) -> None:
        """Keep what its parent is to be told."""
        self.events.append(told)
        self.held_bytes += len(told.data)
        if self.held_bytes > HELD_BYTES:
            self.room.clear()

    def take(self) -> Told:
        """Return the next event, of which its parent is told now."""
        told = self.events.popleft()
        self.held_bytes -= len(told.data)
        self.is_over = told.kind != ChildEvent.MESSAGE
        self.room.set()
        return told


class Children:
    """The children that one run of a program has started."""

    __slots__ = ("by_number", "detached", "is_closed", "started", "tasks")

    def __init__(self) -> None:
        """Begin without one."""
        self.by_number: dict[int, Child] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        """What is under way for them beside the readers of their output."""
        self.started = 0
        """Programs that the run has started, with those that its children may start."""
        self.detached = 0
        """Those of them that outlive the run."""
        self.is_closed = False

    def admit(self, number: int, asked: Asked, limit: int) -> Child:
        """Enter a child.

        Raises:
            InvalidArgument: the number is in use.
            ResourceQuotaExceeded: the program may not start as many.
        """
        if number in self.by_number:
            raise InvalidArgument(argument="child", detail=f"number {number} is in use")
        if self.started + 1 + asked.children > limit:
            kind = "programs that it and its children start"
            raise ResourceQuotaExceeded(held=self.started, kind=kind, asked=1 + asked.children, limit=limit)
        self._count(asked, 1)
        return self._enter(number)

    def _count(self, asked: Asked, sign: int) -> None:
        self.started += sign * (1 + asked.children)
        if asked.detached:
            self.detached += sign * (1 + asked.children)

    def _enter(self, number: int) -> Child:
        child = self.by_number[number] = Child(number)
        child.room.set()
        return child

    def refused(self, child: Child, asked: Asked) -> None:
        """Forget a child that could not be started."""
        if self.by_number.pop(child.number, None) is not None:
            self._count(asked, -1)

    def at(self, number: int) -> Child:
        """Return a child that has started.

        Raises:
            UnknownResource: there is none of this number, or the program was told its end.
        """
        child = self.by_number.get(number)
        if child is None or child.is_over or not child.program_id:
            raise UnknownResource(kind="child", id=number)
        return child

    def admit_task(self) -> None:
        """Check that one more message may be under way.

        Raises:
            TooManyCommands: too many are.
        """
        if len(self.tasks) >= MAX_SENDINGS:
            raise TooManyCommands(in_flight=len(self.tasks), limit=MAX_SENDINGS)

    def remember(
        self, payloads: bytes, record: Record, a: int, b: int, answer: bytes, *, is_foreign: bool = False
    ) -> None:
        """Take what an earlier runtime has answered.

        Args:
            payloads: what the record's offset points into.
            record: a SPAWN or CHILD_NEXT.
            a: of the answer.
            b: of the answer.
            answer: its payload.
            is_foreign: whether it has answered another run, whose children aren't this one's.
        """
        if record.op == Op.SPAWN:
            self._count(Asked.of(payloads[record.offset : record.offset + record.length]), 1)
            entered = self._enter(record.a)
            entered.is_foreign = is_foreign
            if not is_foreign:  # whoever brings a journal chooses the ids in it
                entered.program_id = answer.decode()
        elif (child := self.by_number.get(record.a)) is not None:
            child.reached = b
            child.is_over = a != ChildEvent.MESSAGE

    @property
    def left(self) -> list[Child]:
        """The children whose end the program wasn't told."""
        return [
            child for child in self.by_number.values() if not child.is_over and (child.program_id or child.is_foreign)
        ]

    def close(self) -> None:
        """Stop reading: the run has ended."""
        self.is_closed = True
        for child in self.by_number.values():
            if child.task is not None:
                child.task.cancel()
        for task in self.tasks:
            task.cancel()
