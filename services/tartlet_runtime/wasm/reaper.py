"""Tears stores down on a thread of its own: freeing 896 of them takes longer than a tick."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tartlet_runtime.wasm import capi


@dataclass(frozen=True, slots=True)
class Remains:
    """What an ended guest leaves. `kept` holds what its future points to: it must outlive the future."""

    future: int | None
    store: int
    kept: tuple[Any, ...]
    release: Callable[[], None]


class Reaper:
    """A queue of ended guests and the thread that frees them: the future first, then the store."""

    def __init__(self) -> None:
        """Start the thread."""
        self._queue: queue.SimpleQueue[Remains | threading.Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="wasm-reaper", daemon=True)
        self._thread.start()

    def take(self, remains: Remains) -> None:
        """Free these, soon."""
        self._queue.put(remains)

    def drain(self) -> None:
        """Block until all taken so far are freed."""
        done = threading.Event()
        self._queue.put(done)
        done.wait()

    def close(self) -> None:
        """Free what is left and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
                continue
            if item.future is not None:
                capi.future_delete(item.future)
            capi.store_delete(item.store)
            item.release()
