"""A program's output: a bounded log of events with offsets, read by any number of clients.

An offset counts events from the program's start. Bytes that no client has read yet are *unread*; they are never
dropped. Read ones are kept for a later Attach as long as all of the log fits the bound, then dropped from the front: a
reader that asks for an offset which is gone starts at the oldest event kept, and sees that from the event's offset.

What happens at the bound is decided by `Output`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tartlet_common.errors.registry import TartletError
from tartlet_protos import programs_pb2

EVENT_BYTES = 128
"""What an event costs beside its data; so a bound on bytes bounds empty messages too."""


@dataclass(slots=True)
class LogEvent:
    """One event of a program, as `ProgramEvent` has it."""

    kind: int  # programs_pb2.ProgramEvent.Kind
    data: bytes = b""
    success: bool = False
    error: TartletError | None = None
    usage: programs_pb2.Usage | None = None

    @property
    def cost_bytes(self) -> int:
        """What it counts against the bound."""
        return len(self.data) + EVENT_BYTES


_GONE = LogEvent(0)


class OutputLog:
    """Events from `first` to `end` (exclusive).

    Example:
        >>> log = OutputLog(limit_bytes=1000)
        >>> log.append(LogEvent(3, b"hi")), log.unread_bytes
        (0, 130)
        >>> [e.data for e in log.read(0, max_bytes=100)]
        [b'hi']
        >>> log.mark_read(1); log.unread_bytes
        0
    """

    __slots__ = ("_base", "_events", "_total_bytes", "first", "limit_bytes", "read_to", "unread_bytes")

    def __init__(self, limit_bytes: int) -> None:
        """`limit_bytes` bounds what is kept; only unread events may exceed it."""
        self.limit_bytes = limit_bytes
        self._events: list[LogEvent] = []
        self._base = 0  # offset of _events[0]; those before `first` are dropped, and removed now and then
        self.first = 0
        self.read_to = 0  # events before this one were sent to some client
        self.unread_bytes = 0
        self._total_bytes = 0

    def begin_at(self, offset: int) -> None:
        """Begin an empty log at an offset; clients have read the events before."""
        self._base = self.first = self.read_to = offset

    @property
    def end(self) -> int:
        """Offset of the next event."""
        return self._base + len(self._events)

    @property
    def kept_bytes(self) -> int:
        """What it holds."""
        return self._total_bytes

    def append(self, event: LogEvent) -> int:
        """Add an event and return its offset."""
        self._events.append(event)
        cost = event.cost_bytes
        self.unread_bytes += cost
        self._total_bytes += cost
        if self._total_bytes > self.limit_bytes:
            self._drop_read(self.limit_bytes)
        return self._base + len(self._events) - 1

    def read(self, offset: int, max_bytes: int) -> list[LogEvent]:
        """Return events from `offset` on, which must be at least `first`; at least one event if there is any."""
        start = offset - self._base
        assert offset >= self.first
        size = 0
        for i in range(start, len(self._events)):
            size += self._events[i].cost_bytes
            if size > max_bytes:
                return self._events[start : max(i, start + 1)]
        return self._events[start:]

    def cut(self, end: int) -> None:
        """Remove the events from offset `end` on, which no client has read."""
        for event in self._events[end - self._base :]:
            self.unread_bytes -= event.cost_bytes
            self._total_bytes -= event.cost_bytes
        del self._events[end - self._base :]

    def mark_read(self, offset: int) -> None:
        """Note that events before `offset` have been sent to a client."""
        for i in range(self.read_to - self._base, offset - self._base):
            self.unread_bytes -= self._events[i].cost_bytes
        self.read_to = max(self.read_to, offset)
        if self._total_bytes > self.limit_bytes:
            self._drop_read(self.limit_bytes)

    def drop_read(self) -> None:
        """Drop all events that some client has read."""
        self._drop_read(0)

    def _drop_read(self, limit_bytes: int) -> None:
        at = self.first - self._base
        while self._total_bytes > limit_bytes and self.first < self.read_to:
            self._total_bytes -= self._events[at].cost_bytes
            self._events[at] = _GONE  # its bytes go now, its place with many others
            at += 1
            self.first += 1
        if at > 1024 and at > len(self._events) // 2:
            del self._events[:at]
            self._base = self.first
