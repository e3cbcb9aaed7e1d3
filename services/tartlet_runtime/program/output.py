"""One program's output: its log, the clients that read the log, and whether the program must stand still for them.

With a client attached the program stands still once `limit_bytes` are unread, at its next wait or slice, until the
client has caught up to half of that. With none attached, or four times over the bound within a slice, the program ends
in OutputTooLarge. Nothing unread is dropped. Output counts as memory of the process; where that can't hold more, events
that some client has read go first, then the program ends.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from tartlet_common.errors.registry import FrameTooLarge, MemoryBudgetExceeded, OutputTooLarge, TartletError
from tartlet_protos import programs_pb2
from tartlet_runtime.abi.guest import STDERR
from tartlet_runtime.abi.limits import MAX_MESSAGE_BYTES
from tartlet_runtime.budget.holding import Holding
from tartlet_runtime.program.output_log import LogEvent, OutputLog

_Event = programs_pb2.ProgramEvent
_HARD_FACTOR = 4


class Reader(Protocol):
    """A client's stream, as an output sees it."""

    def mark(self, output: Output) -> None:
        """Note that the output has something new."""


class Output:
    """The log of one program's events, and its readers."""

    __slots__ = (
        "_end",
        "_hold",
        "_memory",
        "_read_before",
        "_readers",
        "awaits_reader",
        "is_behind",
        "is_closed",
        "leave",
        "log",
        "program_id",
        "shown",
        "stopped",
    )

    def __init__(
        self,
        program_id: str,
        limit_bytes: int,
        memory: Holding,
        hold: Callable[[], None],
        end: Callable[[TartletError], None],
    ) -> None:
        """Start empty.

        Args:
            program_id: the program's, for its readers.
            limit_bytes: how much may go unread.
            memory: the process's memory that the output takes, until it is closed.
            hold: called when `stopped` has changed.
            end: ends the program with an error.
        """
        self.program_id = program_id
        self.log = OutputLog(limit_bytes)
        self.stopped = False  # too much goes unread: the program must stand still
        self.is_closed = False  # the last event is in the log
        self.shown = 0
        """Clients are told the events before this offset."""
        self.leave: Callable[[Callable[[], None]], None] | None = None
        """Does something when what leaves the program may leave; None: at once."""
        self.is_behind = False
        """Whether events that an earlier copy of the program had put out are still to come again."""
        self.awaits_reader = False
        """Whether a client is expected: the program may stand still, as with a reader."""
        self._read_before = 0  # events before this offset were read by clients of an earlier copy
        self._readers: list[Reader] = []
        self._memory = memory
        self._hold = hold
        self._end = end

    def begin_again(self, read_to: int) -> None:
        """Put out again what an earlier copy had put out; clients have read the events before `read_to`."""
        self.is_behind = self.awaits_reader = True
        self._read_before = read_to

    def caught_up(self) -> None:
        """Note that all events of the earlier copy are there again."""
        self.is_behind = False

    def expect(self) -> None:
        """Let the program stand still for a reader who is about to come."""
        self.awaits_reader = True

    def expect_no_more(self) -> None:
        """End a program that stands still for a reader who has not come."""
        self.awaits_reader = False
        if self.stopped and not self._readers:
            self._end(OutputTooLarge(limit=self.log.limit_bytes))

    # ---- the program's side ----

    def write(self, stream: int, data: bytes) -> None:
        """Add to stdout or stderr.

        Raises:
            OutputTooLarge: too much is unread.
            MemoryBudgetExceeded: the process has no memory for it.
        """
        kind = _Event.STDERR if stream == STDERR else _Event.STDOUT
        for start in range(0, len(data), MAX_MESSAGE_BYTES):
            self._emit(LogEvent(kind, data[start : start + MAX_MESSAGE_BYTES]))

    def send(self, message: bytes) -> None:
        """Send a message to the clients.

        Raises:
            FrameTooLarge: the message is too long.
            OutputTooLarge: too much is unread.
            MemoryBudgetExceeded: the process has no memory for it.
        """
        if len(message) > MAX_MESSAGE_BYTES:
            raise FrameTooLarge(size=len(message), what="bytes in a message", limit=MAX_MESSAGE_BYTES)
        self._emit(LogEvent(_Event.MESSAGE, message))

    def close(self, last: LogEvent) -> None:
        """Add the last event, whatever is unread: the program has ended, and readers take the time they need."""
        self.is_closed = True
        self._put(last)
        self._memory.close()
        self.stopped = False
        self.leave = None
        self._hold = self._end = _nothing  # these hold the ended program

    def _emit(self, event: LogEvent) -> None:
        if self.is_closed:
            return
        self._put(event)
        if self.log.end <= self._read_before:
            self.read_to(self.log.end)
        if self.log.kept_bytes > self._memory.granted:
            self._take_memory()
        unread, limit = self.log.unread_bytes, self.log.limit_bytes
        if unread <= limit:
            return
        if not (self._readers or self.awaits_reader) or unread > limit * _HARD_FACTOR:
            raise OutputTooLarge(limit=limit)
        if not self.stopped:
            self.stopped = True
            self._hold()

    def _take_memory(self) -> None:
        try:
            self._memory.fit(self.log.kept_bytes)
        except MemoryBudgetExceeded:
            self.log.drop_read()
            self._memory.fit(self.log.kept_bytes)

    def _put(self, event: LogEvent) -> None:
        end = self.log.append(event) + 1
        if self.leave is None:
            self._show(end)
        else:
            self.leave(partial(self._show, end))

    def _show(self, end: int) -> None:
        self.shown = end
        for reader in self._readers:
            reader.mark(self)

    def take_place_of(self, fresh: Output) -> None:
        """Be the output of the program's next run from now on, instead of its `fresh` one."""
        self._hold, self._end, self.leave = fresh._hold, fresh._end, None
        fresh._memory.close()

    def cut(self) -> None:
        """Drop the events that clients were not told, because nobody may ever know of them."""
        self.log.cut(self.shown)
        self.leave = None

    # ---- the readers' side ----

    def attach(self, reader: Reader) -> None:
        """Tell a client's stream about events from now on."""
        self._readers.append(reader)

    @property
    def has_readers(self) -> bool:
        """Whether a client's stream is attached."""
        return bool(self._readers)

    def place_of(self, offset: int) -> int:
        """Return where a reader begins that asks for `offset`. An ended program's end is always told."""
        if self.is_behind:  # the client has read these events already
            self._read_before = max(self._read_before, offset)
            return offset
        return min(offset, self.log.end - self.is_closed)

    def detach(self, reader: Reader) -> None:
        """Forget a client's stream; a program that stood still for its last reader ends, unless one is expected."""
        self._readers.remove(reader)
        if self.stopped and not (self._readers or self.awaits_reader):
            self._end(OutputTooLarge(limit=self.log.limit_bytes))

    def read_to(self, offset: int) -> None:
        """Note that a client has got the events before `offset`."""
        self.log.mark_read(min(offset, self.log.end))  # a reader may wait for events that are to come again
        if not self.is_closed and self.log.kept_bytes < self._memory.granted:
            self._memory.fit(self.log.kept_bytes)
        if self.stopped and self.log.unread_bytes <= self.log.limit_bytes // 2:
            self.stopped = False
            self._hold()


def _nothing(_error: TartletError | None = None) -> None:
    """No-op callback of a closed output."""
