"""What a queue knows of its failures: which commands had no effect, and whether the program got to know."""

from __future__ import annotations

import asyncio
from typing import Any

from inferlet.errors import TartletError


class Failures:
    """The failed commands of a queue, by ticket."""

    __slots__ = ("_lost", "_seen", "_unread", "failed_ticket", "failure", "reset_ticket")

    def __init__(self) -> None:
        self.failure: TartletError | None = None  # why the queue is poisoned
        self.failed_ticket = 0  # of the first failed command, if it is
        self._seen = False  # somebody awaited a command and got it
        self._unread: list[asyncio.Future[Any]] = []  # of failed commands that nobody awaited so far
        self.reset_ticket = 0  # of the last reset
        self._lost: list[tuple[int, int]] = []  # tickets [from, to) that earlier poisonings took

    def forgive(self, ticket: int) -> None:
        """The queue is reset by the command `ticket`: those given from there on run."""
        if self.failure is not None:
            self._lost.append((self.failed_ticket, ticket))
        self.reset_ticket = ticket
        self.failure = None
        self._seen = False
        self.hush()

    @property
    def failure_seen(self) -> bool:
        """Whether the program got to know of the failure: a command's answer was awaited."""
        return self._seen or any(not answer._log_traceback for answer in self._unread)  # noqa: SLF001 - asyncio's mark

    def hush(self) -> None:
        """Forget the answers that nobody awaited; asyncio shall not tell of them as well."""
        for answer in self._unread:
            answer._log_traceback = False  # noqa: SLF001
        self._unread.clear()

    def fail(self, ticket: int, error: TartletError, answer: asyncio.Future[Any] | None = None) -> bool:
        """The host says that the command `ticket` failed; the queue is poisoned from there on.

        `answer` is about to get the failure. Returns whether it must keep asyncio's mark of one that nobody has read.
        """
        if self._was_lost(ticket):
            return False  # a late answer from before the reset
        if ticket < self.reset_ticket:  # it was under way when the queue was reset, and poisons nothing behind that
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
        """Whether the command `ticket` had no effect, because it or one before it failed."""
        if self.failure is not None and ticket >= self.failed_ticket:
            return True
        return self._was_lost(ticket)

    def _was_lost(self, ticket: int) -> bool:
        return any(start <= ticket < end for start, end in self._lost)
