"""In which order programs without pages get pages of a full engine: suspended ones, and those that begin (pure).

All of them have one order, so none waits for another that waits for it. A tenant's programs count one after another:
those with which their tenant would hold more than its share come after those of tenants that stay within theirs. Else a
program would come back only to give way to them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tartlet_control.order.yielding import shares_of

Turn = tuple[bool, tuple[float, ...]]
"""Whether a tenant is over its share, and a rank: the lowest goes first."""


@dataclass(frozen=True, slots=True)
class Wanting:
    """A program without pages that wants some.

    Attributes:
        key: names it for the caller.
        tenant: of the program.
        rank: where the order of programs has it; the lowest goes first.
        need: pages that it wants.
    """

    key: Any
    tenant: str
    rank: tuple[float, ...]
    need: int


def turns(
    wanting: Iterable[Wanting], held: Mapping[str, int], total: int, weights: Mapping[str, float]
) -> dict[Any, Turn]:
    """Return where each program has its turn, by its key.

    Args:
        wanting: the programs.
        held: pages by each tenant that is there; 0 for tenants whose programs all wait.
        total: pages of the engine.
        weights: of tenants; 1 for those that aren't named.

    Example:
        >>> wanting = [Wanting("old", "a", (1.0,), 3), Wanting("new", "a", (2.0,), 3), Wanting("b", "b", (3.0,), 3)]
        >>> sorted(found := turns(wanting, {"a": 2, "b": 0}, 10, {}), key=found.__getitem__)
        ['old', 'b', 'new']
    """
    found: dict[Any, Turn] = {}
    ordered = sorted(wanting, key=lambda each: each.rank)
    held = dict.fromkeys((each.tenant for each in ordered), 0) | dict(held)
    shares = shares_of(held, total, weights)
    for each in ordered:
        held[each.tenant] += each.need
        found[each.key] = (held[each.tenant] > shares[each.tenant], each.rank)
    return found
