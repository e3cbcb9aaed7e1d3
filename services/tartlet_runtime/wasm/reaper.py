"""Tears stores down on a thread of its own: freeing 896 of them takes longer than a tick.

What has ended waits until `go`, so that freeing doesn't compete with programs that start: a pool's slots allow it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

from tartlet_runtime.wasm.boundary.state import Remains

_AT_ONCE = 64
"""Freed in one call."""


class Reaper:
    """A list of ended guests, and the thread that frees them."""

    def __init__(self, free: Callable[[Sequence[Remains]], None]) -> None:
        """Start the thread, which calls `free`."""
        self._free = free
        self._waiting: list[Remains] = []
        self._taken = 0
        self._freed = 0  # written by the thread alone
        self._queue: queue.SimpleQueue[list[Remains] | threading.Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="wasm-reaper", daemon=True)
        self._thread.start()

    def take(self, remains: Remains) -> None:
        """Free these after the next `go`."""
        self._waiting.append(remains)
        self._taken += 1

    @property
    def pending(self) -> int:
        """How many were taken and are not free yet."""
        return self._taken - self._freed

    def go(self) -> None:
        """Begin to free all that were taken."""
        waiting, self._waiting = self._waiting, []
        for start in range(0, len(waiting), _AT_ONCE):
            self._queue.put(waiting[start : start + _AT_ONCE])

    def drain(self) -> None:
        """Block until all taken so far are freed."""
        self.go()
        done = threading.Event()
        self._queue.put(done)
        done.wait()

    def close(self) -> None:
        """Free what is left and end the thread."""
        self.go()
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
            else:
                self._free(item)
                self._freed += len(item)
                item = []  # what they kept goes now, not when the next ones come
