"""Which values of the tenants' store expire, and when. Pure: the time is an argument."""

from __future__ import annotations

import heapq
import math
import struct
from typing import Final

_EXPIRY: Final = struct.Struct(">d")
_SWEEP_S: Final = 60.0
"""How often all values are looked through for expired ones."""
_SLACK: Final = 64
"""Entries that don't hold any more and that a queue may have beyond as many as there are keys."""


def dated(value: bytes, expires_s: float) -> bytes:
    """Return a value with the time at which it expires, in Unix seconds.

    Example:
        >>> expiry(dated(b"v", 12.5)), undated(dated(b"v", 12.5))
        (12.5, b'v')
    """
    return _EXPIRY.pack(expires_s) + value


def expiry(value: bytes) -> float:
    """Return when a dated value expires; 0 if it has no date."""
    end_s = float(_EXPIRY.unpack_from(value)[0]) if len(value) >= _EXPIRY.size else 0.0
    return 0.0 if math.isnan(end_s) else end_s


def undated(value: bytes) -> bytes:
    """Return a dated value without its date."""
    return value[_EXPIRY.size :]


class _Queue:
    """Keys in the order in which their values expire. Entries that hold no more are dropped where they are met."""

    def __init__(self) -> None:
        self.ends: dict[tuple[str, str], float] = {}  # by tenant and key
        self._heap: list[tuple[float, tuple[str, str]]] = []

    def add(self, key: tuple[str, str], end_s: float) -> None:
        if self.ends.get(key) == end_s:
            return
        self.ends[key] = end_s
        heapq.heappush(self._heap, (end_s, key))
        if len(self._heap) > 2 * len(self.ends) + _SLACK:
            self._heap = [(end_s, key) for key, end_s in self.ends.items()]
            heapq.heapify(self._heap)

    def first(self, but: tuple[str, str]) -> tuple[str, str] | None:
        """Return the key, other than `but`, whose value expires first."""
        spared: tuple[float, tuple[str, str]] | None = None
        found: tuple[str, str] | None = None
        while self._heap and found is None:
            end_s, key = self._heap[0]
            if self.ends.get(key) != end_s:
                heapq.heappop(self._heap)
            elif key == but:
                spared = heapq.heappop(self._heap)
            else:
                found = key
        if spared is not None:
            heapq.heappush(self._heap, spared)
        return found


class Expiring:
    """The keys of values that expire, and how many bytes they hold.

    Example:
        >>> keys = Expiring()
        >>> keys.add("t", "a", 90.0, 1), keys.add("t", "b", 10.0, 2), keys.add("u", "c", 15.0, 4)
        (None, None, None)
        >>> keys.next("t"), keys.next("t", but="b"), keys.next_of_all(("t", "b"))
        ('b', 'a', ('u', 'c'))
        >>> keys.held("t"), keys.held("t", but="a"), keys.held_by_all(("t", "a"))
        ((2, 3), (1, 2), 6)
        >>> keys.expired(60.0)
        [('t', 'b'), ('u', 'c')]
    """

    def __init__(self) -> None:
        self._all = _Queue()
        self._of: dict[str, _Queue] = {}
        self._sizes: dict[tuple[str, str], int] = {}
        self._held: dict[str, int] = {}  # bytes, by tenant
        self._total = 0
        self._swept_s = 0.0

    def add(self, tenant: str, key: str, expires_s: float, size: int) -> None:
        """Note when a value expires, and how many bytes it holds with its key."""
        for queue in (self._all, self._of.setdefault(tenant, _Queue())):
            queue.add((tenant, key), expires_s)
        self._count(tenant, size - self._sizes.get((tenant, key), 0))
        self._sizes[tenant, key] = size

    def remove(self, tenant: str, key: str) -> None:
        """Forget a value, which may be none that expires."""
        size = self._sizes.pop((tenant, key), None)
        if size is None:
            return
        self._count(tenant, -size)
        for queue in (self._all, self._of[tenant]):
            del queue.ends[tenant, key]
        if not self._of[tenant].ends:
            del self._of[tenant], self._held[tenant]

    def _count(self, tenant: str, more: int) -> None:
        self._held[tenant] = self._held.get(tenant, 0) + more
        self._total += more

    def keys(self) -> set[tuple[str, str]]:
        """Return tenants and keys of all values that expire."""
        return set(self._sizes)

    def held(self, tenant: str, but: str = "") -> tuple[int, int]:
        """Return how many values of a tenant expire, without `but`, and how many bytes they hold."""
        queue = self._of.get(tenant)
        count, spared = 0 if queue is None else len(queue.ends), self._sizes.get((tenant, but))
        return count - (spared is not None), self._held.get(tenant, 0) - (spared or 0)

    def held_by_all(self, but: tuple[str, str]) -> int:
        """Return how many bytes the values of all tenants hold, without the value `but`."""
        return self._total - self._sizes.get(but, 0)

    def next(self, tenant: str, but: str = "") -> str | None:
        """Return the key of a tenant, other than `but`, whose value expires first; None: there is none."""
        queue = self._of.get(tenant)
        found = None if queue is None else queue.first((tenant, but))
        return None if found is None else found[1]

    def next_of_all(self, but: tuple[str, str]) -> tuple[str, str] | None:
        """Return tenant and key of the value, other than `but`, that expires first; None: there is none."""
        return self._all.first(but)

    def expired(self, now_s: float) -> list[tuple[str, str]]:
        """Return tenants and keys of values that have expired, once a minute; at other times none."""
        if now_s - self._swept_s < _SWEEP_S:
            return []
        self._swept_s = now_s
        return [key for key, end_s in self._all.ends.items() if end_s <= now_s]
