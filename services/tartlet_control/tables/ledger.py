"""The pools of an engine (pages, embeds, token slots) with reference counts (Pie 5.2).

`free + held = total` holds after every call. `check` recounts the references, for idle moments and tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tartlet_common.engine.spec import EngineSpec

PAGES: Final = 0
EMBEDS: Final = 1
SLOTS: Final = 2
POOL_NAMES: Final = ("KV pages", "embeds", "token slots")
"""Names of the pools in messages, by index."""
RESOURCE_NAMES: Final = ("page", "embed", "slot")
"""Names of one resource of each pool in messages, by index."""


@dataclass(frozen=True, slots=True)
class LedgerFault(Exception):  # our bug, never a program's
    """Says that a pool's books don't balance."""

    pool: str
    free: int
    held: int
    total: int

    def __str__(self) -> str:
        return f"{self.pool}: {self.free} free + {self.held} held != {self.total}"


class Pool:
    """A number of things of one kind, each of them free or held by one or more holders.

    Its memory grows with the things that were ever taken: an engine may claim to have millions.

    Example:
        >>> pool = Pool("KV pages", 4)
        >>> ids = pool.take(3)
        >>> pool.release(ids[:1])
        1
        >>> pool.num_free, pool.num_held
        (2, 2)
    """

    __slots__ = ("_free", "_refs", "name", "num_free", "total")

    def __init__(self, name: str, total: int) -> None:
        self.name = name
        self.total = total
        self.num_free = total
        """How many things can be taken."""
        self._free: list[int] = []  # those that were let go; a stack: what was just freed is warm in caches
        self._refs: list[int] = []  # of those that were ever taken, which are the first ones

    @property
    def num_held(self) -> int:
        """How many things have a holder."""
        return self.total - self.num_free

    def take(self, count: int) -> list[int]:
        """Take `count` things and return their physical ids. The caller has checked `num_free`."""
        free, refs = self._free, self._refs
        assert count <= self.num_free, f"{self.name}: {count} of {self.num_free}"
        if not count:
            return []
        ids = free[-count:]
        del free[-count:]
        for i in ids:
            refs[i] = 1
        if fresh := count - len(ids):
            ids.extend(range(len(refs), len(refs) + fresh))
            refs.extend([1] * fresh)
        self.num_free -= count
        return ids

    def retain(self, ids: list[int]) -> None:
        """Add a holder to each of `ids`."""
        refs = self._refs
        for i in ids:
            assert refs[i] > 0, f"{self.name}: {i} is free"
            refs[i] += 1

    def count_last(self, ids: list[int]) -> int:
        """Return how many of `ids` have one holder: so many are free after `release`."""
        refs = self._refs
        return sum([refs[i] == 1 for i in ids])

    def release(self, ids: list[int]) -> int:
        """Remove a holder from each of `ids`. Ids without a holder are free; return how many that are."""
        refs, free = self._refs, self._free
        before = len(free)
        for i in ids:
            left = refs[i] - 1
            assert left >= 0, f"{self.name}: {i} freed twice"
            refs[i] = left
            if not left:
                free.append(i)
        freed = len(free) - before
        self.num_free += freed
        return freed

    def check(self) -> None:
        """Recount every reference, which takes milliseconds for a hundred thousand.

        Raises:
            LedgerFault: the books don't balance.
        """
        held = sum(1 for r in self._refs if r)
        free = self.total - len(self._refs) + len(self._free)
        if held + free != self.total or free != self.num_free or len(set(self._free)) != len(self._free):
            raise LedgerFault(self.name, free, held, self.total)


def pools_of(spec: EngineSpec) -> tuple[Pool, Pool, Pool]:
    """Return the three pools of an engine, in the order PAGES, EMBEDS, SLOTS."""
    totals = (spec.num_pages, spec.num_embeds, spec.num_slots)
    pages, embeds, slots = (Pool(name, total) for name, total in zip(POOL_NAMES, totals, strict=True))
    return pages, embeds, slots
