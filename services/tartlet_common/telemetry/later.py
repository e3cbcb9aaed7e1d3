"""Telemetry's work away from threads that are waited for: noted there in a microsecond, done soon after by a thread.

OpenTelemetry's code is out of the CPU's caches whenever a step or a program's end calls it, and then takes several
times what it takes in a loop; so calls wait for each other, and are made together, a few at a time.
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
"""Longest that a call waits, in the usual case."""
LIMIT: Final = 16_384
"""Calls waiting; beyond that each new one makes the oldest at once, so that nothing is lost and memory is bounded."""
_CHUNK: Final = 16
_PAUSE_S: Final = 0.0005
"""After each chunk, for threads that wait for the interpreter: unasked it would be theirs only after 5 ms."""


class Later:
    """Calls put off. `put` may be called from any thread."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._waiting: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._making = threading.RLock()  # calls are made one at a time
        self._starting = threading.Lock()
        self._some = threading.Event()
        self._thread: threading.Thread | None = None

    def put(self, call: Callable[..., None], *args: Any) -> None:
        """Have `call(*args)` made soon, after those put before."""
        waiting = self._waiting
        waiting.append((call, args))
        if not self._some.is_set():
            self._wake()
        if len(waiting) > self._limit:
            with self._making:
                self._one()

    def flush(self) -> None:
        """Make all calls put before now; they have been made when this returns."""
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
            self._some.clear()  # before looking: a call put from here on sets it again
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
