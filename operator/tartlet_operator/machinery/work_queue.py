"""The work queue: one entry an object, the newest body wins, never two workers on one object at once.

Each kind has workers of its own, so slow sources or a runtime that hangs keep no pool waiting.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from tartlet_operator.api.meta import Key

Body = Mapping[str, Any]
Handle = Callable[[Key, Body | None], Awaitable[float | None]]
"""Brings one object about, given its key and newest body (None: fetch the body). Returns when to look again, s."""

_HELD_BYTES: Final = 64 << 20
"""Most bytes of bodies that wait. Beyond that the key alone waits, and its body is fetched when its turn comes."""

LATER: Final = float("inf")
"""The answer of a handler when something under way, such as a download, will queue the object again."""


class _Turns(asyncio.Queue[Key]):
    """A queue of keys in which namespaces take turns: one with thousands of objects delays the others by one object."""

    def _init(self, maxsize: int) -> None:
        self._queue: OrderedDict[str, deque[Key]] = OrderedDict()  # by namespace; the next in turn comes first
        self._size = 0

    def qsize(self) -> int:
        return self._size

    def _put(self, item: Key) -> None:
        self._queue.setdefault(item.namespace, deque()).append(item)
        self._size += 1

    def _get(self) -> Key:
        namespace, keys = self._queue.popitem(last=False)
        self._size -= 1
        item = keys.popleft()
        if keys:
            self._queue[namespace] = keys
        return item


class WorkQueue:
    """Objects to look at, now or later."""

    def __init__(self) -> None:
        self._pending: dict[Key, Body | None] = {}
        self._weights: dict[Key, int] = {}  # of the bodies that wait, bytes
        self._held_bytes = 0
        self._busy: set[Key] = set()
        self._ready: defaultdict[str, _Turns] = defaultdict(_Turns)  # by kind
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._taken = asyncio.Event()

    def __len__(self) -> int:
        """Number of objects that wait to be looked at."""
        return len(self._pending)

    @property
    def idle(self) -> bool:
        """Whether nothing waits and no worker is busy; timers may run."""
        return not self._pending and not self._busy

    def holds(self, weight: int) -> bool:
        """Whether a body of `weight` bytes may wait beside those that do."""
        return self._held_bytes + weight <= _HELD_BYTES

    def add(self, key: Key, body: Body | None = None, weight: int = 0) -> None:
        """Queue an object. Without a body, a body that waits is kept.

        Args:
            key: names the object.
            body: its newest body.
            weight: bytes that the body takes.
        """
        self._cancel_timer(key)
        waiting = key in self._pending
        if not waiting or body is not None:
            self._weigh(key, weight)
            self._pending[key] = body
        if not waiting and key not in self._busy:
            self._ready[key.kind].put_nowait(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Queue an object in `seconds`, or sooner if something happens to it; the earliest time counts."""
        loop = asyncio.get_running_loop()
        due = loop.time() + max(seconds, 0.0)
        timer = self._timers.get(key)
        if timer is not None and timer.when() <= due:
            return
        self._cancel_timer(key)
        self._timers[key] = loop.call_at(due, self.add, key)

    def add_without_body(self, key: Key) -> None:
        """Queue an object whose newest body has to be fetched: it was deleted, or its body is heavy."""
        self.add(key)
        self._weigh(key, 0)
        self._pending[key] = None

    def forget(self, key: Key) -> None:
        """Cancel the timer of an object that is gone."""
        self._cancel_timer(key)

    async def room(self, kind: str, limit: int, wait_s: float) -> bool:
        """Wait until fewer than `limit` objects of a kind wait; return False if more do after `wait_s`."""
        try:
            async with asyncio.timeout(wait_s):
                while self._ready[kind].qsize() >= limit:
                    self._taken.clear()
                    await self._taken.wait()
        except TimeoutError:
            return False
        return True

    async def work(self, kind: str, handle: Handle) -> None:
        """Handle a kind's objects one after another until cancelled. `handle` deals with its own errors."""
        ready = self._ready[kind]
        while True:
            key = await ready.get()
            body = self._pending.pop(key)
            self._weigh(key, 0)
            self._taken.set()
            self._busy.add(key)
            try:
                again_s = await handle(key, body)
            finally:
                self._busy.discard(key)
                if key in self._pending:
                    self._ready[key.kind].put_nowait(key)
            if again_s is not None and again_s < LATER and key not in self._pending:
                self.add_after(key, again_s)

    def close(self) -> None:
        """Stop the timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _weigh(self, key: Key, weight: int) -> None:
        self._held_bytes += weight - self._weights.pop(key, 0)
        if weight:
            self._weights[key] = weight

    def _cancel_timer(self, key: Key) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
