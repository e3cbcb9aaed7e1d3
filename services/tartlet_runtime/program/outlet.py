"""What one program puts out: its log, who reads it, and whether it must stand still until they have caught up.

With a client attached the program stands still when `output_bytes` are unread, at its next wait or slice, until the
client has caught up to half; with none attached, or four times over the bound within a slice, it ends in
OutputTooLarge. Nothing is dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tartlet_common.errors.registry import OutputTooLarge
from tartlet_runtime.program.output_log import LogEvent, OutputLog

if TYPE_CHECKING:
    from tartlet_runtime.program.program import Program
    from tartlet_runtime.program.spec import ReaderCall

_HARD_FACTOR = 4


class Outlet:
    """The log and its readers."""

    __slots__ = ("_program", "_readers", "log", "stopped")

    def __init__(self, program: Program, limit_bytes: int) -> None:
        self.log = OutputLog(limit_bytes)
        self.stopped = False  # too much goes unread
        self._program = program
        self._readers: list[ReaderCall] = []

    def attach(self, reader: ReaderCall) -> None:
        """A client reads from now on."""
        self._readers.append(reader)

    def detach(self, reader: ReaderCall) -> None:
        """A client has gone."""
        self._readers.remove(reader)
        if self.stopped and not self._readers:
            self._program.end(OutputTooLarge(limit=self.log.limit_bytes))

    def read_to(self, offset: int) -> None:
        """A client has got the events before `offset`."""
        self.log.mark_read(offset)
        if self.stopped and self.log.unread_bytes <= self.log.limit_bytes // 2:
            self.stopped = False
            self._program.go_on()

    def put(self, event: LogEvent) -> None:
        """Add an event whatever is unread: the last one."""
        self.log.append(event)
        for reader in self._readers:
            reader.mark(self._program)

    def close(self) -> None:
        """The program has ended: readers have their time, and it isn't held by what it holds."""
        self.stopped = False
        del self._program

    def emit(self, event: LogEvent) -> bool:
        """Add an event; whether the program must stand still from now on.

        Raises:
            OutputTooLarge: too much is unread.
        """
        self.put(event)
        unread, limit = self.log.unread_bytes, self.log.limit_bytes
        if unread <= limit:
            return False
        if not self._readers or unread > limit * _HARD_FACTOR:
            raise OutputTooLarge(limit=limit)
        before, self.stopped = self.stopped, True
        return not before
