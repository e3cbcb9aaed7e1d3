"""Time as a dependency, so that decisions can be tested without sleeping."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock and the time of day."""

    def now(self) -> float:
        """Monotonic seconds; only differences mean anything."""

    def unix_ns(self) -> int:
        """Nanoseconds since 1970, as the machine believes."""


class SystemClock:
    """The machine's clocks. Deadlines use `now`, so a stepped wall clock has no effect on them."""

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def unix_ns(self) -> int:
        """Wall clock in nanoseconds."""
        return time.time_ns()


class ManualClock:
    """A clock that moves when told to.

    Example:
        >>> clock = ManualClock(start=10.0)
        >>> clock.advance(2.5)
        >>> clock.now()
        12.5
    """

    def __init__(self, start: float = 0.0) -> None:
        """Begin at `start` seconds."""
        self._now = start

    def now(self) -> float:
        """Seconds advanced so far, plus the start."""
        return self._now

    def unix_ns(self) -> int:
        """The same time in nanoseconds."""
        return int(self._now * 1e9)

    def advance(self, seconds: float) -> None:
        """Move forward."""
        self._now += seconds
