"""Who gives way when an engine's memory is full: tenants over their share first, then the order of programs (pure).

A program that gives way loses its pages for a while and nothing else. But what it loses is computed again, so others
wait for their turn while any program computes and the engine has no credit for that (`order.credit`). A program whose
state can't be made again can't give way: where only such programs hold what is missing, `ending` says which ends.
Pages of those that gave way may be kept in host memory, which tenants share too: `losing` says whose are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
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
        fixed: its state can't be made again, so that it holds its pages until it ends.
        created: its place in the order of starts.
        rests: it has been idle for longer than its state takes to be made again.
        stalled: it can't go on, because it waits for room itself or is on its way off the engine.
        cost: tokens that are computed again if it gives way.
    """

    key: Any
    tenant: str
    held: int
    rank: tuple[float, ...]
    idle: bool = False
    may_yield: bool = True
    fresh: bool = False
    fixed: bool = False
    created: int = 0
    rests: bool = False
    stalled: bool = False
    cost: int = 0


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
    shares = shares_of(held, total, weights)
    return frozenset(t for t, count in held.items() if count > shares[t])


def shares_of(tenants: Iterable[str], total: int, weights: Mapping[str, float]) -> dict[str, float]:
    """Return the share of each tenant, in pages or what else `total` counts; `weights` are 1 for those not named."""
    weight = {tenant: weights.get(tenant, 1.0) for tenant in tenants}
    together = sum(weight.values())
    return {tenant: total * each / together for tenant, each in weight.items()}


def _held(holders: Iterable[Holder]) -> dict[str, int]:
    held: dict[str, int] = {}
    for holder in holders:
        held[holder.tenant] = held.get(holder.tenant, 0) + holder.held
    return held


def losing(
    tenant: str, asked: int, free: int, kept: Sequence[tuple[Any, str, int]], weights: Mapping[str, float]
) -> list[Any]:
    """Return whose kept pages are dropped so that a tenant's pages can be kept; none if it may not have them all.

    Host memory that nobody else asks for is anybody's. When it is full, a tenant within its share gets room from
    tenants over theirs, the latest first, until these are within theirs.

    Args:
        tenant: whose pages are to be kept.
        asked: how many.
        free: pages of host memory.
        kept: keys, tenants and numbers of the pages that are kept, the latest last.
        weights: of tenants; 1 for those that aren't named.

    Example:
        >>> kept = [("first", "flood", 6), ("second", "flood", 4)]
        >>> losing("calm", 5, 0, kept, {}), losing("calm", 6, 0, kept, {}), losing("flood", 1, 0, kept, {})
        (['second', 'first'], [], [])
    """
    if asked <= free:
        return []
    held = dict.fromkeys((tenant, *(of for _, of, _ in kept)), 0)
    for _, of, count in kept:
        held[of] += count
    shares = shares_of(held, free + sum(held.values()), weights)
    if held[tenant] + asked > shares[tenant]:
        return []
    chosen: list[Any] = []
    for key, of, count in reversed(kept):
        if asked > free and of != tenant and held[of] > shares[of]:
            chosen.append(key)
            held[of] -= count
            free += count
    return chosen if asked <= free else []


def yielding(
    asker: Holder,
    others: Sequence[Holder],
    asked: int,
    total: int,
    weights: Mapping[str, float],
    credit: float = inf,
    *,
    tired: bool = False,
    tenants: Iterable[str] = (),
) -> list[Holder]:
    """Return who gives way to a program that asks for pages, in order, until `asked` are free.

    Fewer than `asked` may come free; then the asker waits for programs that go before it, or for credit. While none of
    the others goes on by itself, no credit is asked for, and resting programs give way to anybody: somebody always goes
    on.

    Args:
        asker: who asks; `held` is what it will hold, without `asked`.
        others: the other programs of the engine.
        asked: pages that aren't free.
        total: pages of the engine.
        weights: of tenants; 1 for those that aren't named.
        credit: tokens that may be computed again.
        tired: the asker has waited for long, so that tenants over their share give way to its own without credit.
        tenants: further ones that have a share, because programs of theirs wait for the engine.

    Example:
        >>> old, new = Holder("old", "", 5, (1.0,)), Holder("new", "", 5, (2.0,))
        >>> [h.key for h in yielding(old, [new], 2, 10, {})], yielding(new, [old], 2, 10, {})
        (['new'], [])
    """
    moves = any(not other.rests and not other.stalled for other in others)
    held = dict.fromkeys(tenants, 0) | _held((asker, *others))
    shares = shares_of(held, total, weights)
    held[asker.tenant] += asked

    def over(tenant: str) -> bool:
        return held[tenant] > shares[tenant]

    first = all(asker.rank <= other.rank for other in others if not other.rests)
    chosen: list[Holder] = []

    def affordable(holder: Holder) -> bool:
        return holder.cost <= credit or not moves

    def may(holder: Holder) -> bool:
        if not holder.may_yield or not holder.held:
            return False
        if holder.rests and not moves:  # else the engine would stand still, and nobody had these pages
            return True
        if holder.tenant != asker.tenant and over(holder.tenant) != over(asker.tenant):
            without = held[holder.tenant] - holder.held
            return over(holder.tenant) and (affordable(holder) or tired or without >= shares[holder.tenant])
        if holder.rests:
            return True
        return affordable(holder) and holder.rank > asker.rank and (first or not holder.fresh)

    def turn(holder: Holder) -> tuple[bool, bool, tuple[float, ...]]:
        return holder.tenant != asker.tenant and over(holder.tenant), holder.rests, holder.rank

    left = sorted(others, key=turn, reverse=True)
    for holder in left:
        if asked <= 0:
            break
        if may(holder):  # asked again each time: a tenant is over its share until enough of its programs gave way
            chosen.append(holder)
            asked -= holder.held
            credit -= holder.cost
            held[holder.tenant] -= holder.held
    return chosen


def ending(
    asker: Holder,
    others: Sequence[Holder],
    asked: int,
    free: int,
    total: int,
    weights: Mapping[str, float],
    *,
    tired: bool = False,
) -> list[Holder]:
    """Return who ends so that a program gets pages that can't come free otherwise: `[asker]`, others, or nobody yet.

    An asker whose tenant stays within its share with what it asks for never ends: programs of tenants over their share
    do, idle ones first and the newest first, until their tenant is within its share. Otherwise only newer programs of
    the asker's own tenant end for it, or else the asker. An asker that may give way waits while a program computes that
    would end for it or that holds what is missing.

    Args:
        asker: who asks; `held` without what it asks for.
        others: the other programs of the engine. Those that aren't `fixed` give way or end some day.
        asked: pages that it asks for.
        free: pages that nobody holds.
        total: pages of the engine.
        weights: of tenants; 1 for those that aren't named.
        tired: the asker has waited so long that busy programs of tenants over their share end too.

    Example:
        >>> calm, flood = Holder("calm", "a", 0, (2.0,)), Holder("flood", "b", 8, (1.0,), idle=True, fixed=True)
        >>> [h.key for h in ending(calm, [flood], 2, 0, 8, {})], [h.key for h in ending(calm, [flood], 5, 0, 8, {})]
        (['flood'], ['calm'])
    """
    short = asked - free - sum(holder.held for holder in others if not holder.fixed)
    if short <= 0:
        return []
    held = _held((asker, *others))
    shares = shares_of(held, total, weights)
    fixed = sorted((h for h in others if h.fixed), key=lambda h: (not h.idle, -h.created))
    chosen: list[Holder] = []
    if held[asker.tenant] + asked <= shares[asker.tenant]:
        for holder in fixed:
            if (
                short > 0
                and holder.held
                and holder.tenant != asker.tenant
                and held[holder.tenant] > shares[holder.tenant]
            ):
                if not holder.idle and asker.may_yield and not tired:
                    return []
                chosen.append(holder)
                short -= holder.held
                held[holder.tenant] -= holder.held
    for holder in sorted(fixed, key=lambda h: -h.created):
        if short > 0 and holder.held and holder.tenant == asker.tenant and holder.created > asker.created:
            chosen.append(holder)
            short -= holder.held
    if short <= 0:
        return chosen
    return [] if asker.may_yield and any(not holder.idle for holder in fixed) else [asker]
