"""Time as a dependency, so that decisions can be tested without sleeping."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock and a wall clock."""

    def now(self) -> float:
        """Return monotonic seconds; only differences have a meaning."""

    def unix_ns(self) -> int:
        """Return the wall clock's nanoseconds since 1970."""


class SystemClock:
    """The machine's clocks. Deadlines use `now`, so a stepped wall clock has no effect on them."""

    def now(self) -> float:
        """Return the monotonic clock's seconds."""
        return time.monotonic()

    def unix_ns(self) -> int:
        """Return the system's nanoseconds since 1970."""
        return time.time_ns()


class ManualClock:
    """A clock that moves only by `advance`.

    Example:
        >>> clock = ManualClock(start=10.0)
        >>> clock.advance(2.5)
        >>> clock.now()
        12.5
    """

    def __init__(self, start: float = 0.0) -> None:
        """Set the clock to `start` seconds."""
        self._now = start

    def now(self) -> float:
        """Return the start plus the seconds advanced so far."""
        return self._now

    def unix_ns(self) -> int:
        """Return the same time in nanoseconds."""
        return int(self._now * 1e9)

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self._now += seconds
