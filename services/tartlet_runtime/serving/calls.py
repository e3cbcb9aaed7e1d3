"""One client's stream of events: answers in the order of specs, and the output of the programs it watches, coalesced.

A message holds what all watched programs have put out since the last one was accepted by the transport, up to
`MESSAGE_BYTES`. Only then is it counted as read; so a slow client's programs see their unread output grow and stand
still (`Program`), and the others notice nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from tartlet_common.errors.registry import TartletError
from tartlet_common.rpc.error_proto import error_to_proto
from tartlet_protos import programs_pb2
from tartlet_runtime.program.driver import Driver
from tartlet_runtime.program.output import Output
from tartlet_runtime.program.output_log import LogEvent
from tartlet_runtime.ties.tie import Tie

MESSAGE_BYTES = 1 << 20
SHARE_BYTES = 128 << 10
"""What one program may take of a message."""

_Event = programs_pb2.ProgramEvent


@dataclass(slots=True)
class _Cursor:
    index: int
    offset: int


@dataclass(eq=False)
class Call:
    """The events of one Launch or Attach call over `expected` specs."""

    driver: Driver
    expected: int
    asked_s: float
    """Monotonic seconds at which the request came."""
    relays: set[asyncio.Task[None]] = field(default_factory=set)
    """Tasks that bring events of programs at other runtimes."""
    _relayed: deque[tuple[list[programs_pb2.ProgramEvent], asyncio.Future[None]]] = field(default_factory=deque)
    _answers: dict[int, programs_pb2.ProgramEvent] = field(default_factory=dict)
    _answered: int = 0
    _cursors: dict[Output, list[_Cursor]] = field(default_factory=dict)
    """Of each watched program one for every index that names it."""
    _dirty: dict[Output, None] = field(default_factory=dict)
    _waiter: asyncio.Future[None] | None = None
    _tied: list[tuple[int | None, Tie, float]] = field(default_factory=list)
    """Programs of which this is a call of their client: index, bond, and how long they go on without the client.

    Index None: the client knows the program already.
    """
    _closed: bool = False
    refused: bool = False
    """All its items were answered with an error."""

    def answer(self, index: int, event: programs_pb2.ProgramEvent) -> None:
        """Answer spec `index`; answers leave in the order of specs, and before their programs' output."""
        event.index = index
        self._answers[index] = event
        self.driver.tell(self)

    def accept(self, index: int, program_id: str, token: bytes = b"") -> None:
        """Answer a spec with its program."""
        self.answer(index, _Event(kind=_Event.ACCEPTED, program_id=program_id, data=token))

    def reject(self, index: int, error: TartletError) -> None:
        """Answer a spec with an error."""
        self.answer(index, _Event(kind=_Event.REJECTED, error=error_to_proto(error)))

    def refuse(self, error: TartletError) -> None:
        """Answer all specs with an error."""
        self.refused = True
        for index in range(self.expected):
            self.reject(index, error)

    def has_left(self, index: int) -> bool:
        """Return whether the answer of spec `index` was sent."""
        return index < self._answered

    def has_answered(self, index: int) -> bool:
        """Return whether spec `index` has an answer."""
        return self.has_left(index) or index in self._answers

    def answer_if_open(self, index: int, event: programs_pb2.ProgramEvent) -> bool:
        """Answer spec `index` unless it has an answer. Returns whether it had none."""
        if self.has_answered(index):
            return False
        self.answer(index, event)
        return True

    async def relay(self, events: list[programs_pb2.ProgramEvent]) -> None:
        """Send events of programs at other runtimes. Returns when the transport has taken them."""
        taken: asyncio.Future[None] = self.driver.loop.create_future()
        self._relayed.append((events, taken))
        self.driver.tell(self)
        await taken

    def watch(self, output: Output, index: int, offset: int = 0) -> None:
        """Send the program's events from `offset` on."""
        if self._closed:
            return
        if output not in self._cursors:
            self._cursors[output] = []
            output.attach(self)
        self._cursors[output].append(_Cursor(index, output.place_of(offset)))
        self.mark(output)

    def tie(self, index: int | None, tie: Tie, key: bytes, grace_s: float) -> None:
        """End the program of item `index` some time after the call, if the program is tied to this client.

        Args:
            index: the item's; None: the client knows the program, whether or not its item was answered.
            tie: the program's bond with its client.
            key: names the client, if it will come back when its connection breaks.
            grace_s: how long the program waits for that, once its item was answered; 0: it ends with the call.
        """
        if tie.hold(key):
            self._tied.append((index, tie, grace_s))

    def mark(self, output: Output) -> None:
        """Read the program's output into the next message."""
        self._dirty[output] = None
        self.driver.tell(self)

    def wake(self) -> None:
        """Let `messages` continue."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def messages(self) -> AsyncIterator[programs_pb2.ProgramEvents]:
        """Yield messages to send, until every spec is answered and every watched program has ended."""
        while True:
            message = programs_pb2.ProgramEvents()
            read = self._gather(message)
            taken = self._gather_relayed(message)
            if message.events:
                yield message
                for output, offset in read:
                    output.read_to(offset)
                if taken is not None and not taken.done():
                    taken.set_result(None)
            elif self._answered == self.expected and not self._cursors and not self._relaying():
                return
            else:
                self._waiter = self.driver.loop.create_future()
                await self._waiter

    def _relaying(self) -> bool:
        """Return whether events of programs at other runtimes may still come."""
        for task in self.relays:
            if not task.done():
                task.add_done_callback(self._relay_done)
                return True
        return bool(self._relayed)

    def _relay_done(self, _: asyncio.Task[None]) -> None:
        self.driver.tell(self)

    def _gather_relayed(self, message: programs_pb2.ProgramEvents) -> asyncio.Future[None] | None:
        """Add a message of another runtime if its programs are answered. Returns what the sender awaits."""
        if not self._relayed or any(event.index >= self._answered for event in self._relayed[0][0]):
            return None
        relayed, taken = self._relayed.popleft()  # one portion a message: each may have 1 MiB
        message.events.extend(relayed)
        return taken

    def close(self) -> None:
        """Close the call. Programs that are tied to it end, at once or if their client doesn't come back."""
        self._closed = True
        for task in self.relays:
            task.cancel()
        ending: list[Tie] = []
        for index, tie, grace_s in self._tied:
            if grace_s and (index is None or self.has_left(index)):
                tie.let_go(grace_s)  # before its output loses a reader
            else:
                ending.append(tie)
        for output in list(self._cursors):
            output.detach(self)
        self._cursors.clear()
        for tie in ending:
            tie.let_go(0.0)

    def _gather(self, message: programs_pb2.ProgramEvents) -> list[tuple[Output, int]]:
        """Add as many answers and events as there is room for. Returns how far each output is read then."""
        room = MESSAGE_BYTES
        while room > 0 and self._answered in self._answers:
            answer = self._answers.pop(self._answered)
            message.events.append(answer)
            room -= answer.ByteSize()
            self._answered += 1
        read: list[tuple[Output, int]] = []
        early: list[Output] = []
        while self._dirty and room > 0:
            output = next(iter(self._dirty))
            del self._dirty[output]
            cursors = self._cursors.get(output)
            if cursors is None:
                continue
            is_early = is_behind = False
            reached = 0
            for _ in range(len(cursors)):
                if room <= 0:
                    is_behind = True  # those that had no turn are the first of the next
                    break
                cursor = cursors.pop(0)
                if cursor.index >= self._answered:  # its answer waits for those before it
                    is_early = True
                    cursors.append(cursor)
                    continue
                taken = self._read(output, cursor, min(room, SHARE_BYTES), message)
                room -= sum(event.cost_bytes for event in taken)
                reached = max(reached, cursor.offset)
                if not taken or taken[-1].kind != _Event.ENDED:
                    is_behind |= cursor.offset < output.shown
                    cursors.append(cursor)
            read.append((output, reached))
            if not cursors:
                del self._cursors[output]
                output.detach(self)
            elif is_behind:
                self._dirty[output] = None
            elif is_early:
                early.append(output)
        self._dirty.update(dict.fromkeys(early))
        return read

    @staticmethod
    def _read(output: Output, cursor: _Cursor, max_bytes: int, message: programs_pb2.ProgramEvents) -> list[LogEvent]:
        """Add the events behind the cursor to `message`, and move the cursor behind them."""
        log = output.log
        offset = max(min(cursor.offset, log.end - 1) if output.is_closed else cursor.offset, log.first)
        taken = log.read(offset, max_bytes)[: output.shown - offset] if offset < output.shown else []
        for event in taken:
            _add(message, event, cursor.index, output.program_id, offset)
            offset += 1
        cursor.offset = offset
        return taken


def _add(message: programs_pb2.ProgramEvents, event: LogEvent, index: int, program_id: str, offset: int) -> None:
    added = message.events.add(index=index, program_id=program_id, kind=event.kind, offset=offset, data=event.data)
    if event.kind == _Event.ENDED:
        added.success = event.success
        added.error.CopyFrom(error_to_proto(event.error))
        if event.usage is not None:
            added.usage.CopyFrom(event.usage)
