"""`Ranking`: what waits, in the order of its ranks, of which only what changed is ranked again.

The ranks are those of `Order.rank`. What is noted of a program in the process table (`order.book`) makes the program's
items due to be ranked again, and so does the time at which a waiting call starves. Everything else keeps its place.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import count
from math import inf
from typing import Any, Final, Generic, TypeVar

from tartlet_control.order.book import Program, Thread
from tartlet_control.order.orders import Order, Rank, steady_until

T = TypeVar("T")
Place = tuple[Rank, int, T]
"""A rank, a number that differs for each item of a ranking, and the item."""
_MANY: Final = 8
"""If one in so many items is due, all items are sorted: that costs less than to move each."""


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

    __slots__ = ("_by_time", "_due", "_entries", "_numbers", "_of", "_order", "_sorted", "_version")

    def __init__(self, numbers: Iterator[int] | None = None) -> None:
        """`numbers`: rise with each item; rankings that share them can be merged."""
        self._numbers = numbers or count()
        self._entries: dict[T, _Entry[T]] = {}
        self._of: dict[Program, dict[T, _Entry[T]]] = {}
        self._due: dict[Program, None] = {}
        self._sorted: list[Any] = []  # the entries' places; their numbers differ, so items are never compared
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
        self._take_out(entry)
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
            self._order, self._version = order, order.history.version
            self._due.update(dict.fromkeys(self._of))
        due = [entry for program in self._due for entry in self._of[program].values()]
        self._due.clear()
        while self._by_time and self._by_time[0][0] <= now:
            until, _, entry = heapq.heappop(self._by_time)
            if entry.until == until:
                entry.until = inf
                due.append(entry)
        if due:
            self._rank(due, order, now)
        return self._sorted

    def _rank(self, due: list[_Entry[T]], order: Order, now: float) -> None:
        many = len(due) * _MANY > len(self._entries)
        for entry in due:
            if not many:
                self._take_out(entry)
            entry.place = (order.rank(entry.thread, now), entry.number, entry.item)
            until = steady_until(order, entry.thread, now)
            if until != entry.until:
                entry.until = until
                if until < inf:
                    heapq.heappush(self._by_time, (until, entry.number, entry))
            if not many:
                insort(self._sorted, entry.place)
        if many:
            self._sorted = sorted([entry.place for entry in self._entries.values()])
        if len(self._by_time) > 2 * len(self._entries) + 64:
            self._by_time = [(e.until, e.number, e) for e in self._entries.values() if e.until < inf]
            heapq.heapify(self._by_time)

    def _take_out(self, entry: _Entry[T]) -> None:
        if entry.place is not None:
            del self._sorted[bisect_left(self._sorted, entry.place)]
            entry.place = None
