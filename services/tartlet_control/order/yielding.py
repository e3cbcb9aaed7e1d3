"""Who gives way when an engine's memory is full: tenants over their share first, then the order of programs (pure).

A program that gives way loses its pages for a while and nothing else. So this decides who waits, never who ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Holder:
    """A program on the engine.

    Attributes:
        key: names it for the caller.
        tenant: of the program.
        held: pages (or what else is short) that it holds.
        rank: where the order of programs has it; the lowest goes first.
        idle: nothing of it waits or computes.
        may_yield: its state can be made again, and it isn't on its way already.
        fresh: its state was made again, and it has not computed for as long as that took.
    """

    key: Any
    tenant: str
    held: int
    rank: tuple[float, ...]
    idle: bool = False
    may_yield: bool = True
    fresh: bool = False


def over_share(held: Mapping[str, int], total: int, weights: Mapping[str, float]) -> frozenset[str]:
    """Return the tenants that hold more than their share.

    Args:
        held: by each tenant that is there.
        total: of what there is.
        weights: of tenants; 1 for those that aren't named.

    Example:
        >>> over_share({"a": 7, "b": 2}, 10, {}), over_share({"a": 7, "b": 2}, 10, {"a": 3})
        (frozenset({'a'}), frozenset())
    """
    together = sum(weights.get(tenant, 1.0) for tenant in held)
    return frozenset(t for t, count in held.items() if count > total * weights.get(t, 1.0) / together)


def yielding(
    asker: Holder, others: Sequence[Holder], asked: int, total: int, weights: Mapping[str, float]
) -> list[Holder]:
    """Return who gives way to a program that asks for pages, in order, until `asked` are free.

    Fewer than `asked` may come free; then the asker waits for programs that go before it.

    Args:
        asker: who asks; `held` without what it asks for.
        others: the other programs of the engine.
        asked: pages that aren't free.
        total: pages of the engine.
        weights: of tenants; 1 for those that aren't named.

    Example:
        >>> old, new = Holder("old", "", 5, (1.0,)), Holder("new", "", 5, (2.0,))
        >>> [h.key for h in yielding(old, [new], 2, 10, {})], yielding(new, [old], 2, 10, {})
        (['new'], [])
    """
    held: dict[str, int] = {}
    for holder in (asker, *others):
        held[holder.tenant] = held.get(holder.tenant, 0) + holder.held
    all_weights = sum(weights.get(tenant, 1.0) for tenant in held)
    shares = {tenant: total * weights.get(tenant, 1.0) / all_weights for tenant in held}
    held[asker.tenant] += asked

    def over(tenant: str) -> bool:
        return held[tenant] > shares[tenant]

    first = all(asker.rank <= other.rank for other in others if not other.idle)
    chosen: list[Holder] = []

    def may(holder: Holder) -> bool:
        if not holder.may_yield or not holder.held:
            return False
        if holder.tenant != asker.tenant and over(holder.tenant) != over(asker.tenant):
            return over(holder.tenant)
        return holder.idle or (holder.rank > asker.rank and (first or not holder.fresh))

    def turn(holder: Holder) -> tuple[bool, bool, tuple[float, ...]]:
        return holder.tenant != asker.tenant and over(holder.tenant), holder.idle, holder.rank

    left = sorted(others, key=turn, reverse=True)
    for holder in left:
        if asked <= 0:
            break
        if may(holder):  # asked again each time: a tenant is over its share until enough of its programs gave way
            chosen.append(holder)
            asked -= holder.held
            held[holder.tenant] -= holder.held
    return chosen
