"""The bond of one program with the client of its `run`.

gRPC tells a server the same of a call that was cancelled and of a connection that broke. So a client that will come
back names itself, with a key, in its launch and whenever it attaches again. The program then waits for that client for
a while, and ends at once when the client says that it leaves. The program of a client without a key ends with its call.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Final, Protocol

from tartlet_common.errors.registry import Disconnected, TartletError

_KEY_BYTES: Final = 64
End = Callable[[TartletError], None]


class Timer(Protocol):
    """A call that will come later."""

    def cancel(self) -> None:
        """Drop the call."""


class Reading(Protocol):
    """A program's output, as a tie sees it."""

    @property
    def has_readers(self) -> bool:
        """Whether a client's stream is attached."""
        ...

    def expect(self) -> None:
        """Let the program wait for a reader."""

    def expect_no_more(self) -> None:
        """End a program that stands still for a reader who has not come."""


class Tie:
    """Knows which calls of its client a program has, and how long it waits for the next one."""

    __slots__ = ("_calls", "_end", "_is_tied", "_key", "_later", "_output", "_timer", "stays")

    def __init__(self, output: Reading, end: End, later: Callable[[float, Callable[[], None]], Timer]) -> None:
        """Tie nothing yet.

        Args:
            output: the program's.
            end: ends the program with an error.
            later: calls a function after so many seconds.
        """
        self._output = output
        self._end = end
        self._later = later
        self._is_tied = False
        self._key = b""
        self._calls = 0
        self._timer: Timer | None = None
        self.stays = False
        """The program outlives its client, because another launch with its idempotency key was accepted."""

    def hold(self, key: bytes) -> bool:
        """Note a call of a client; return whether the program is tied to that client.

        Args:
            key: the client's, b"" of a client that won't come back. The first key that is named is the right one.
        """
        key = key[:_KEY_BYTES]
        if key and self._key and not hmac.compare_digest(key, self._key):
            return False
        self._is_tied = True
        self._key = self._key or key
        self._calls += 1
        self._cancel()
        return True

    def let_go(self, grace_s: float) -> None:
        """Note the end of a call that `hold` has accepted; its client has so many seconds to come back."""
        self._calls -= 1
        if self._calls:
            return
        if grace_s:
            self.expect(grace_s)
        elif self.stays:
            self._output.expect_no_more()
        else:
            self._end(Disconnected())

    def leave(self, key: bytes) -> None:
        """End the program, because its client won't come back. Another client's key has no effect."""
        if self._is_tied and not self.stays and key and hmac.compare_digest(key[:_KEY_BYTES], self._key):
            self._end(Disconnected())

    def expect(self, grace_s: float, *, tied: bool = False) -> None:
        """Let the program wait for readers for a while.

        Args:
            grace_s: how long, in seconds.
            tied: the program is tied to a client of which no call is known, because it comes from another runtime.
        """
        self._is_tied |= tied
        self._output.expect()
        self._cancel()
        self._timer = self._later(grace_s, self._waited)

    def go_on(self, end: End) -> None:
        """Tie the program's next run from now on, which ends by `end`."""
        self._end = end

    def close(self) -> None:
        """Note that the program has ended."""
        self._cancel()
        self._end = _nothing

    def _waited(self) -> None:
        self._timer = None
        self._output.expect_no_more()
        is_missed = self._is_tied and not self.stays and not self._calls
        if is_missed and (self._key or not self._output.has_readers):  # without a key any reader may be the client
            self._end(Disconnected())

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _nothing(_error: TartletError) -> None:
    """No-op for a program that has ended."""
