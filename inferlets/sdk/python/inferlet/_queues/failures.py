"""The failures of a queue: which commands had no effect, and whether the program has seen the error."""

from __future__ import annotations

import asyncio
from typing import Any

from inferlet.errors import TartletError


class Failures:
    """The failed commands of a queue, by their tickets."""

    __slots__ = ("_lost", "_seen", "_unread", "failed_ticket", "failure", "reset_ticket")

    def __init__(self) -> None:
        self.failure: TartletError | None = None  # why the queue is poisoned
        self.failed_ticket = 0  # of the first failed command, if it is
        self._seen = False  # whether a task awaited a failed command and got the error
        self._unread: list[asyncio.Future[Any]] = []  # answers of failed commands that no task has awaited
        self.reset_ticket = 0  # of the last reset
        self._lost: list[tuple[int, int]] = []  # ranges [from, to) of tickets without effect, from before resets

    def forgive(self, ticket: int) -> None:
        """Note that the command `ticket` resets the queue: commands from there on run."""
        if self.failure is not None:
            self._lost.append((self.failed_ticket, ticket))
        self.reset_ticket = ticket
        self.failure = None
        self._seen = False
        self.hush()

    @property
    def failure_seen(self) -> bool:
        """Whether the program has seen the failure, because it awaited a failed command."""
        return self._seen or any(not answer._log_traceback for answer in self._unread)  # noqa: SLF001 - asyncio's mark

    def hush(self) -> None:
        """Forget the answers that no task awaited, so that asyncio does not report them too."""
        for answer in self._unread:
            answer._log_traceback = False  # noqa: SLF001
        self._unread.clear()

    def fail(self, ticket: int, error: TartletError, answer: asyncio.Future[Any] | None = None) -> bool:
        """Note that the command `ticket` failed, which poisons the queue from there on.

        Args:
            ticket: the failed command.
            error: its error.
            answer: the future that is about to get the error, if the command has one.

        Returns:
            Whether `answer` must keep asyncio's mark of an exception that nobody has read.
        """
        if self._was_lost(ticket):
            return False  # the answer comes late: the queue was reset meanwhile
        if ticket < self.reset_ticket:  # the queue was reset while the command was on its way: later commands run
            self._lost.append((ticket, self.reset_ticket))
            return False
        if self.failure is None or ticket < self.failed_ticket:
            self.failure, self.failed_ticket = error, ticket
        if answer is None or answer.done() or self._seen:  # `done`: cancelled, nobody will read it
            return False
        if answer._callbacks:  # noqa: SLF001 - somebody awaits it
            self._seen = True
            return False
        self._unread.append(answer)
        return True

    def lost(self, ticket: int) -> bool:
        """Return whether the command `ticket` had no effect, because it or an earlier command failed."""
        if self.failure is not None and ticket >= self.failed_ticket:
            return True
        return self._was_lost(ticket)

    def _was_lost(self, ticket: int) -> bool:
        return any(start <= ticket < end for start, end in self._lost)
