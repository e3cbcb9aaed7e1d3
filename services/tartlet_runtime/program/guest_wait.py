"""The wait or sleep in which a guest stands, and the timer that ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tartlet_runtime.abi.guest import FOREVER_US

_MOST_S = 31_536_000.0
"""Longest timer: a year. A float of seconds still counts it exactly."""


class GuestWait:
    """At most one open wait or sleep."""

    __slots__ = ("_loop", "_timer", "max_records", "sleeping", "timed_out")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.max_records: int | None = None  # of the open wait
        self.timed_out = False
        self.sleeping = False
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def open(self, max_records: int, timeout_us: int, over: Callable[[], None]) -> None:
        """Open a wait; call `over` when its time is up."""
        self.max_records = max_records
        if timeout_us != FOREVER_US:
            self._timer = self._loop.call_later(min(timeout_us / 1e6, _MOST_S), self._up, over)

    def _up(self, over: Callable[[], None]) -> None:
        self._timer = None
        self.timed_out = True
        over()

    def close(self) -> None:
        """Close the wait, which has its delivery."""
        self.max_records = None
        self.timed_out = False
        self.cancel()

    def sleep(self, duration_us: int, over: Callable[[], None]) -> None:
        """Open a sleep; call `over` at its end."""
        self.sleeping = True
        self._timer = self._loop.call_later(duration_us / 1e6, self._awake, over)

    def _awake(self, over: Callable[[], None]) -> None:
        self._timer = None
        self.sleeping = False
        over()

    def cancel(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
