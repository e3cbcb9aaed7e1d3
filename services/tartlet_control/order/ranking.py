"""`Ranking`: what waits, in the order of its ranks, of which only what changed is ranked again.

The ranks are those of `Order.rank`. What is noted of a program in the process table (`order.book`) makes the program's
items due to be ranked again, and so does the time at which a waiting call starves. Everything else keeps its place.

A step usually takes the first items. So items that go are only noted, and the next look takes them out together.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Collection, Iterator
from itertools import count
from math import inf
from operator import is_
from typing import Any, Final, Generic, TypeVar

from tartlet_control.order.book import Program, Thread
from tartlet_control.order.orders import Order, Rank, steady_until

T = TypeVar("T")
Place = tuple[Rank, int, T]
"""A rank, a number that differs for each item of a ranking, and the item."""
_MANY: Final = 8
"""If one in so many items is due, all items are sorted: that costs less than to move each."""
_MOST_GONE: Final = 256
"""So many items that are gone may still stand among the others, until the next look."""


class _Entry(Generic[T]):
    """An item, and where it stands since it was ranked last."""

    __slots__ = ("item", "number", "place", "thread", "until")

    def __init__(self, item: T, thread: Thread, number: int) -> None:
        self.item = item
        self.thread = thread
        self.number = number  # in the order of arrival, which decides between equal ranks
        self.place: Place[T] | None = None  # None: it is due
        self.until = inf


class Ranking(Generic[T]):
    """Items with a thread each, sorted by the ranks of their threads."""

    __slots__ = ("_by_time", "_due", "_entries", "_gone", "_numbers", "_of", "_order", "_sorted", "_version")

    def __init__(self, numbers: Iterator[int] | None = None) -> None:
        """`numbers`: rise with each item; rankings that share them can be merged."""
        self._numbers = numbers or count()
        self._entries: dict[T, _Entry[T]] = {}
        self._of: dict[Program, dict[T, _Entry[T]]] = {}
        self._due: dict[Program, None] = {}
        self._sorted: list[Any] = []  # the entries' places; their numbers differ, so items are never compared
        self._gone: list[Any] = []  # places in `_sorted` that no item has any more
        self._by_time: list[tuple[float, int, _Entry[T]]] = []
        self._order: Order | None = None
        self._version = 0

    def __contains__(self, item: T) -> bool:
        return item in self._entries

    def __iter__(self) -> Iterator[T]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, item: T, thread: Thread) -> None:
        """Add an item behind those of equal rank. One that is here already stays."""
        if item in self._entries:
            return
        program = thread.program
        of = self._of.get(program)
        if of is None:
            of = self._of[program] = {}
            program.watchers.append(self.touch)
        self._entries[item] = of[item] = _Entry(item, thread, next(self._numbers))
        self._due[program] = None

    def discard(self, item: T) -> None:
        """Drop an item, if it is here."""
        entry = self._entries.pop(item, None)
        if entry is None:
            return
        if entry.place is not None:
            self._gone.append(entry.place)
            entry.place = None
        if not self._entries:
            self._sorted, self._gone = [], []
        elif len(self._gone) > _MOST_GONE:
            self._take_out()
        entry.until = -inf
        program = entry.thread.program
        of = self._of[program]
        del of[item]
        if not of:
            del self._of[program]
            self._due.pop(program, None)
            program.watchers.remove(self.touch)
        del entry.item, entry.thread  # the entry may stay in `_by_time` for long; what it stood for may end before

    def touch(self, program: Program) -> None:
        """Take note that something about a program has changed."""
        self._due[program] = None

    def ordered(self, order: Order, now: float) -> list[Place[T]]:
        """Return the items by the ranks of their threads at a time, as sorting all of them would.

        The list stays the ranking's own: it is good until the next call of a method.
        """
        if order is not self._order or order.history.version != self._version:
            changed = order.history.changed_since(self._version) if order is self._order else None
            anybody = changed is None or None in changed
            self._due.update({each: None for each in self._of if anybody or (changed and each.key in changed)})
            self._order, self._version = order, order.history.version
        due = {entry: None for program in self._due for entry in self._of[program].values()}
        self._due.clear()
        while self._by_time and self._by_time[0][0] <= now:
            until, _, entry = heapq.heappop(self._by_time)
            if entry.until == until:
                entry.until = inf
                due[entry] = None
        if due:
            self._rank(due, order, now)
        elif self._gone:
            self._take_out()
        return self._sorted

    def _rank(self, due: Collection[_Entry[T]], order: Order, now: float) -> None:
        moved: list[Any] = []
        for entry in due:
            if entry.place is not None:
                self._gone.append(entry.place)
            entry.place = (order.rank(entry.thread, now), entry.number, entry.item)
            moved.append(entry.place)
            until = steady_until(order, entry.thread, now)
            if until != entry.until:
                entry.until = until
                if until < inf:
                    heapq.heappush(self._by_time, (until, entry.number, entry))
        if len(due) * _MANY > len(self._entries):
            self._sorted, self._gone = sorted([entry.place for entry in self._entries.values()]), []
        else:
            self._take_out()
            self._put_in(sorted(moved))
        if len(self._by_time) > 2 * len(self._entries) + 64:
            self._by_time = [(e.until, e.number, e) for e in self._entries.values() if e.until < inf]
            heapq.heapify(self._by_time)

    def _put_in(self, moved: list[Any]) -> None:
        """Add sorted places."""
        places = self._sorted
        if not places or moved[0] > places[-1]:
            places += moved
            return
        at = 0
        for place in moved:
            at = bisect_left(places, place, at)
            places.insert(at, place)

    def _take_out(self) -> None:
        """Drop the places that no item has any more."""
        places, gone = self._sorted, sorted(self._gone)
        self._gone = []
        if all(map(is_, gone, places)):  # they are the first ones
            del places[: len(gone)]
            return
        at = 0
        for place in gone:
            at = bisect_left(places, place, at)
            del places[at]
