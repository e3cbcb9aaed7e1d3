"""What waits to be delivered to one program: answers, and messages that it has not received; all of it bounded."""

from __future__ import annotations

from collections import deque

from tartlet_common.abi import Flag
from tartlet_common.errors.registry import (
    FrameTooLarge,
    InboxFull,
    ResourceQuotaExceeded,
    TartletError,
    TooManyCommands,
)
from tartlet_runtime.abi.limits import MAX_INBOX_BYTES, MAX_MESSAGE_BYTES, ProgramLimits
from tartlet_runtime.abi.submission import Row
from tartlet_runtime.program.inbox import Inbox

_AWAIT = int(Flag.AWAIT)
_HARD_INBOX_FACTOR = 2  # answers from the runtime come on top of those of control's commands in flight
_SPARE_RECORDS = 64  # failures of queues and the like, which nobody asked for


class Mailbox:
    """The inbox, and the messages and `receive` calls that wait for one another."""

    __slots__ = ("_limits", "_message_bytes", "_messages", "_receives", "inbox")

    def __init__(self, limits: ProgramLimits) -> None:
        self._limits = limits
        self.inbox = Inbox()
        self._messages: deque[bytes] = deque()
        self._message_bytes = 0
        self._receives: deque[int] = deque()

    def receive(self, ticket: int) -> None:
        """Answer with the next message, now or when it comes.

        Raises:
            TooManyCommands: too many wait already.
            ResourceQuotaExceeded: the program doesn't take its answers.
        """
        if self._messages:
            message = self._messages.popleft()
            self._message_bytes -= len(message)
            self.inbox.result(ticket, message)
            self._check()
        elif len(self._receives) >= self._limits.commands_in_flight:
            raise TooManyCommands(in_flight=len(self._receives), limit=self._limits.commands_in_flight)
        else:
            self._receives.append(ticket)

    def answer(self, row: Row, payload: bytes) -> bool:
        """Answer a record if it awaits it; whether it does.

        Raises:
            ResourceQuotaExceeded, TooManyCommands: the program doesn't take its answers.
        """
        if not row[1] & _AWAIT:
            return False
        self.inbox.result(row[2], payload)
        self._check()
        return True

    def refuse(self, row: Row, error: TartletError) -> None:
        """Answer a record that awaits it with an error; else raise it.

        Raises:
            ResourceQuotaExceeded, TooManyCommands: the program doesn't take its answers.
        """
        if not row[1] & _AWAIT:
            raise error
        self.inbox.failure(row[2], row[3], error)
        self._check()

    def intake(self, count: int, records: bytes, payload: bytes) -> None:
        """Records from control.

        Raises:
            ResourceQuotaExceeded, TooManyCommands: the program doesn't take its answers.
        """
        self.inbox.add(count, records, payload)
        self._check()

    def _check(self) -> None:
        """A command stops counting as in flight when it is answered, so what isn't taken has a bound of its own."""
        inbox, limit = self.inbox, self._limits.commands_in_flight
        if inbox.payload_bytes > MAX_INBOX_BYTES:
            kind = "bytes of answers that it has not taken"
            raise ResourceQuotaExceeded(held=inbox.payload_bytes, kind=kind, asked=0, limit=MAX_INBOX_BYTES)
        if inbox.count > _HARD_INBOX_FACTOR * limit + _SPARE_RECORDS:
            raise TooManyCommands(in_flight=inbox.count, limit=limit)

    def deliver(self, message: bytes) -> bool:
        """A client's message; whether a `receive` took it at once.

        Raises:
            InboxFull: there are too many unread ones.
            FrameTooLarge: it is too long.
        """
        if len(message) > MAX_MESSAGE_BYTES:
            raise FrameTooLarge(size=len(message), what="bytes in a message", limit=MAX_MESSAGE_BYTES)
        limit = self._limits.inbox_messages
        if self._receives:
            if self.inbox.payload_bytes + len(message) > MAX_INBOX_BYTES:
                raise InboxFull(pending=self.inbox.count, limit=limit)
            self.inbox.result(self._receives.popleft(), message)
            return True
        if len(self._messages) >= limit or self._message_bytes + len(message) > MAX_INBOX_BYTES:
            raise InboxFull(pending=len(self._messages), limit=limit)
        self._messages.append(message)
        self._message_bytes += len(message)
        return False
