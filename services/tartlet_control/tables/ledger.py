"""The pools of an engine (pages, embeds, token slots) with reference counts (Pie 5.2).

`free + held + cached = total` holds after every call. What is cached has no holder, and its content is kept for later
holders. `check` recounts the references, for idle moments and tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tartlet_common.engine.spec import EngineSpec

PAGES: Final = 0
EMBEDS: Final = 1
SLOTS: Final = 2
TABLES: Final = 3
"""The numbers of page tables, which are shared like pools but are none (`page_tables.EngineTables`)."""
POOL_NAMES: Final = ("KV pages", "embeds", "token slots", "page tables")
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
    cached: int = 0

    def __str__(self) -> str:
        cached = f" + {self.cached} cached" if self.cached else ""
        return f"{self.pool}: {self.free} free + {self.held} held{cached} != {self.total}"


class Pool:
    """A number of things of one kind, each of them free, held by one or more holders, or cached.

    Its memory grows with the things that were ever taken: an engine may claim to have millions.

    Example:
        >>> pool = Pool("KV pages", 4)
        >>> ids = pool.take(3)
        >>> pool.release(ids[:1])
        1
        >>> pool.num_free, pool.num_held
        (2, 2)
    """

    __slots__ = ("_free", "_kept", "_refs", "name", "num_cached", "num_free", "num_refs", "total")

    def __init__(self, name: str, total: int) -> None:
        self.name = name
        self.total = total
        self.num_free = total
        """How many things can be taken."""
        self.num_cached = 0
        """How many things are kept and have no holder."""
        self.num_refs = 0
        """How many holders all things have together."""
        self._kept: set[int] = set()  # those that are cached once they have no holder
        self._free: list[int] = []  # those that were let go; a stack: what was just freed is warm in caches
        self._refs: list[int] = []  # of those that were ever taken, which are the first ones

    def begin_cached(self, ids: Iterable[int]) -> None:
        """Let things be cached from the beginning, when nothing was taken: their contents were there before."""
        assert not self._refs, f"{self.name}: {len(self._refs)} were taken"
        self._kept.update(ids)
        self._refs = [0] * (max(self._kept, default=-1) + 1)
        self._free = [i for i in range(len(self._refs)) if i not in self._kept]
        self.num_cached = len(self._kept)
        self.num_free = self.total - self.num_cached

    @property
    def num_held(self) -> int:
        """How many things have a holder."""
        return self.total - self.num_free - self.num_cached

    @property
    def num_available(self) -> int:
        """How many can be taken: what is free, and what is only cached."""
        return self.num_free + self.num_cached

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
        self.num_refs += count
        return ids

    def retain(self, ids: list[int]) -> None:
        """Add a holder to each of `ids`, which are held or cached."""
        refs, kept = self._refs, self._kept
        for i in ids:
            if not refs[i]:
                assert i in kept, f"{self.name}: {i} is free"
                self.num_cached -= 1
            refs[i] += 1
        self.num_refs += len(ids)

    def holders(self, i: int) -> int:
        """Return how many holders a thing has that was taken."""
        return self._refs[i]

    def is_kept(self, i: int) -> bool:
        """Return whether a thing is cached once it has no holder."""
        return i in self._kept

    def count_last(self, ids: list[int]) -> int:
        """Return how many of `ids` have one holder: so many can be taken after `release`, cached ones among them."""
        refs = self._refs
        return sum([refs[i] == 1 for i in ids])

    def release(self, ids: list[int]) -> int:
        """Remove a holder from each of `ids`. Ids without a holder are free or cached; return how many that are."""
        refs, free, kept = self._refs, self._free, self._kept
        before = len(free)
        cached = 0
        for i in ids:
            left = refs[i] - 1
            assert left >= 0, f"{self.name}: {i} freed twice"
            refs[i] = left
            if not left:
                if i in kept:
                    cached += 1
                else:
                    free.append(i)
        freed = len(free) - before
        self.num_free += freed
        self.num_cached += cached
        self.num_refs -= len(ids)
        return freed + cached

    def keep(self, ids: list[int]) -> None:
        """Let held things be cached, instead of free, once they have no holder."""
        refs, kept = self._refs, self._kept
        for i in ids:
            assert refs[i] > 0, f"{self.name}: {i} is free"
            kept.add(i)

    def drop(self, ids: list[int]) -> int:
        """Cache things no longer. Those without a holder are free; return how many that are."""
        refs, kept, freed = self._refs, self._kept, 0
        for i in ids:
            kept.remove(i)
            if not refs[i]:
                self._free.append(i)
                freed += 1
        self.num_cached -= freed
        self.num_free += freed
        return freed

    def check(self) -> None:
        """Recount every reference, which takes milliseconds for a hundred thousand.

        Raises:
            LedgerFault: the books don't balance.
        """
        held = sum(1 for r in self._refs if r)
        cached = sum(1 for i in self._kept if not self._refs[i])
        free = self.total - len(self._refs) + len(self._free)
        counts = (free, cached, sum(self._refs)) == (self.num_free, self.num_cached, self.num_refs)
        if held + free + cached != self.total or not counts or len(set(self._free)) != len(self._free):
            raise LedgerFault(self.name, free, held, self.total, cached)


def pools_of(spec: EngineSpec) -> tuple[Pool, Pool, Pool]:
    """Return the three pools of an engine, in the order PAGES, EMBEDS, SLOTS."""
    totals = (spec.num_pages, spec.num_embeds, spec.num_slots)
    pages, embeds, slots = (Pool(name, total) for name, total in zip(POOL_NAMES[:TABLES], totals, strict=True))
    return pages, embeds, slots
