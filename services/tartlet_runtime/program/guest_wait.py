"""A guest that stands in a wait or a sleep, and the timer that ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tartlet_runtime.abi.guest import FOREVER_US

_MOST_S = 31_536_000.0
"""A year is as good as the 500,000 that fit the field, and a float of seconds still counts it exactly."""


class GuestWait:
    """At most one wait or sleep is open."""

    __slots__ = ("_loop", "_timer", "max_records", "sleeping", "timed_out")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.max_records: int | None = None  # of the open wait
        self.timed_out = False
        self.sleeping = False
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def open(self, max_records: int, timeout_us: int, over: Callable[[], None]) -> None:
        """The guest waits; `over` is called when its time is up."""
        self.max_records = max_records
        if timeout_us != FOREVER_US:
            self._timer = self._loop.call_later(min(timeout_us / 1e6, _MOST_S), self._up, over)

    def _up(self, over: Callable[[], None]) -> None:
        self._timer = None
        self.timed_out = True
        over()

    def close(self) -> None:
        """The wait has its delivery."""
        self.max_records = None
        self.timed_out = False
        self.cancel()

    def sleep(self, duration_us: int, over: Callable[[], None]) -> None:
        """The guest sleeps; `over` is called when it has."""
        self.sleeping = True
        self._timer = self._loop.call_later(duration_us / 1e6, self._awake, over)

    def _awake(self, over: Callable[[], None]) -> None:
        self._timer = None
        self.sleeping = False
        over()

    def cancel(self) -> None:
        """No timer any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
