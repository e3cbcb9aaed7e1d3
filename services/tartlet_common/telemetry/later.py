"""Puts off calls of OpenTelemetry: a serving thread queues a call in a microsecond, a thread of its own makes it.

When a step or a program's end calls OpenTelemetry, the library's code is not in the CPU's caches and takes several
times as long as in a loop. So calls are collected and made together, a few at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

log = logging.getLogger("tartlet.telemetry")

EVERY_S: Final = 0.25
"""Seconds that a call usually waits, at most."""
LIMIT: Final = 16_384
"""Calls that may wait. Beyond it each `put` makes the oldest call at once: no call is lost, and memory is bounded."""
_CHUNK: Final = 16
_PAUSE_S: Final = 0.0005
"""Pause after each chunk of calls, so that other threads get the interpreter, which by default takes 5 ms."""


class Later:
    """A queue of calls to be made later. Any thread may call `put`."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._waiting: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._making = threading.RLock()  # calls are made one at a time
        self._starting = threading.Lock()
        self._some = threading.Event()
        self._thread: threading.Thread | None = None

    def put(self, call: Callable[..., None], *args: Any) -> None:
        """Queue `call(*args)`; queued calls are made in order."""
        waiting = self._waiting
        waiting.append((call, args))
        if not self._some.is_set():
            self._wake()
        if len(waiting) > self._limit:
            with self._making:
                self._one()

    def flush(self) -> None:
        """Make all calls that were queued before this one, then return."""
        with self._making:
            left = len(self._waiting)
            while left > 0 and self._one():
                left -= 1

    def _wake(self) -> None:
        self._some.set()
        if self._thread is not None:
            return
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="telemetry-later", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            self._some.wait()
            time.sleep(EVERY_S)
            self._some.clear()  # before the queue is read: a later `put` sets it again
            while self._waiting:
                with self._making:
                    for _ in range(_CHUNK):
                        if not self._one():
                            break
                time.sleep(_PAUSE_S)

    def _one(self) -> bool:
        try:
            call, args = self._waiting.popleft()
        except IndexError:
            return False
        try:
            call(*args)
        except Exception:
            log.exception("telemetry was lost")
        return True
