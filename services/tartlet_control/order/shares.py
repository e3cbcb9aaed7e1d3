"""Tenants' shares of an engine's device time: start-time fair queuing (Goyal, Vin and Cheng, 1996). Pure.

Each tenant has a *virtual time* on an engine: the device time that its commands had, over the tenant's weight. The
tenant with the least virtual time goes first. A tenant that had nothing to compute for a while begins at the virtual
time of those that had, so idle time gives no credit. Nothing waits while the device has room: shares only decide who
goes first.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Final, TypeVar

from tartlet_common.errors.registry import InvalidArgument

T = TypeVar("T")
_KEPT: Final = 1024
"""Of twice as many tenants, those that had the least are forgotten: they begin again where others are."""
_RESERVED: Final = 8
_FRESH: Final = 0.1
"""How much the latest step counts in the estimate of a token's device time."""


def weights_of(text: str) -> dict[str, float]:
    """Return the weights that a setting names, as `TENANT=WEIGHT,...`. A tenant that isn't named has 1.

    Raises:
        InvalidArgument: the text isn't of that form, or a weight isn't between 0.001 and 1000.

    Example:
        >>> weights_of("team-a=3,team-b=0.5"), weights_of("")
        ({'team-a': 3.0, 'team-b': 0.5}, {})
    """
    weights: dict[str, float] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        tenant, equals, number = part.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = 0.0
        if not equals or not tenant or not 1e-3 <= weight <= 1e3:
            raise InvalidArgument(argument="tenant_shares", detail=f"{part!r} isn't TENANT=WEIGHT with 0.001 to 1000")
        weights[tenant] = weight
    return weights


def has_place(counts: Mapping[str, int], tenant: str, most: int, weights: Mapping[str, float]) -> bool:
    """Return whether one more program of a tenant may start.

    The last eighth of the places is for tenants that have less than their share, and half of that for tenants that have
    no place at all. So those that flood can't keep others out, and one alone still has most of the places.

    Args:
        counts: programs of each tenant that has some.
        tenant: whose program would start.
        most: places in all.
        weights: of tenants; 1 for those that aren't named.

    Example:
        >>> has_place({"a": 13}, "a", 16, {}), has_place({"a": 14}, "a", 16, {}), has_place({"a": 14}, "b", 16, {})
        (True, False, True)
        >>> has_place({"a": 14, "b": 1}, "b", 16, {}), has_place({"a": 14, "b": 1}, "c", 16, {})
        (False, True)
    """
    held, reserve = sum(counts.values()), most // _RESERVED
    if tenant not in counts or held < most - reserve:
        return held < most
    if held >= most - (reserve + 1) // 2:
        return False
    shares = {each: weights.get(each, 1.0) for each in counts}
    others = sum(shares.values()) if len(shares) > 1 else shares[tenant] + 1.0  # somebody else may come
    return counts[tenant] < most * shares[tenant] / others


class Shares:
    """The virtual times of the tenants of one engine."""

    __slots__ = ("_floor", "_times", "_token_s", "_weights")

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        """`weights`: by tenant; 1 for all others."""
        self._weights = weights or {}
        self._times: dict[str, float] = {}
        self._floor = 0.0
        self._token_s = 1e-4

    def time(self, tenant: str) -> float:
        """Return the virtual time at which a tenant's next command begins, in seconds over weight."""
        return max(self._times.get(tenant, 0.0), self._floor)

    def mix(self, entries: Sequence[T], tenant_of: Callable[[T], str], tokens_of: Callable[[T], int]) -> list[T]:
        """Merge the entries of all tenants by virtual time. Each tenant's own entries keep their order.

        Args:
            entries: in the order that programs have without shares.
            tenant_of: returns an entry's tenant.
            tokens_of: returns how many tokens an entry computes.
        """
        lanes: dict[str, deque[T]] = {}
        for entry in entries:
            lanes.setdefault(tenant_of(entry), deque()).append(entry)
        if len(lanes) < 2:
            return list(entries)
        heap = [(self.time(tenant), n, tenant) for n, tenant in enumerate(lanes)]
        heapq.heapify(heap)
        mixed: list[T] = []
        while heap:
            time, n, tenant = heap[0]
            entry = lanes[tenant].popleft()
            mixed.append(entry)
            if lanes[tenant]:
                heapq.heapreplace(heap, (time + self._estimate(tenant, tokens_of(entry)), n, tenant))
            else:
                heapq.heappop(heap)
        return mixed

    def sent(self, tokens: Mapping[str, int]) -> dict[str, float]:
        """Charge a step as far as its time can be estimated, so that the next one is formed for the others.

        Args:
            tokens: that the step computes for each tenant in it.

        Returns:
            What each tenant was charged, for `settled`.
        """
        if not tokens:
            return {}
        starts = {tenant: self.time(tenant) for tenant in tokens}
        self._floor = max(self._floor, min(starts.values()))
        charged = {tenant: self._estimate(tenant, count) for tenant, count in tokens.items()}
        for tenant, seconds in charged.items():
            self._times[tenant] = starts[tenant] + seconds
        if len(self._times) > 2 * _KEPT:
            self._times = dict(heapq.nlargest(_KEPT, self._times.items(), key=itemgetter(1)))
        return charged

    def settled(self, charged: Mapping[str, float], tokens: Mapping[str, int], device_s: float) -> None:
        """Put the device time that a step took in the place of the estimate.

        Args:
            charged: what `sent` returned for the step.
            tokens: that the step computed for each tenant.
            device_s: that the step took, in seconds.
        """
        total = sum(tokens.values())
        if not total:
            return
        token_s = device_s / total
        for tenant, seconds in charged.items():
            spent = token_s * tokens[tenant] / self._weights.get(tenant, 1.0)
            self._times[tenant] = self._times.get(tenant, self._floor) + spent - seconds
        self._token_s += _FRESH * (token_s - self._token_s)

    def _estimate(self, tenant: str, tokens: int) -> float:
        return self._token_s * max(tokens, 1) / self._weights.get(tenant, 1.0)
