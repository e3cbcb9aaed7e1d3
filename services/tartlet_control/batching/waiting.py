"""`Waiting`: the queues of one engine that have an engine command at their head, by kind and by rank.

A step takes few of the queues that may wait. So nothing here is looked at one by one when a step is formed: the queues
of each kind of command are kept in the order of programs, and what changed since the last step is ranked again.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from itertools import count
from math import inf
from typing import Final

from tartlet_common.abi import Priority
from tartlet_control.order.orders import Order
from tartlet_control.order.ranking import Place, Ranking
from tartlet_control.tables.programs import CommandQueue

_NORMAL: Final = int(Priority.NORMAL)
_MOST_GONE: Final = 256
Ranked = Sequence[Place[CommandQueue]]
"""Queues by rank; the numbers of the places decide between equal ranks."""
_Cell = list[CommandQueue]
"""A queue that waits, or nothing once it doesn't, so that what is gone holds no program that has ended."""


class Lane:
    """The queues whose head is of one kind."""

    __slots__ = ("_arrivals", "_cells", "ranking")

    def __init__(self, numbers: Iterator[int]) -> None:
        self.ranking: Ranking[CommandQueue] = Ranking(numbers)
        self._cells: dict[CommandQueue, _Cell] = {}
        self._arrivals: list[tuple[float, int, _Cell]] = []  # of heads; some are gone

    def add(self, queue: CommandQueue, arrived: float, number: int) -> None:
        """Add a queue whose head arrived then, or note its new head."""
        self.ranking.add(queue, queue.thread)
        cell = self._cells.get(queue)
        if cell is None:
            cell = self._cells[queue] = [queue]
        heapq.heappush(self._arrivals, (arrived, number, cell))
        if len(self._arrivals) > _MOST_GONE + 2 * len(self.ranking):
            self._arrivals = [a for a in self._arrivals if self._is_here(a)]
            heapq.heapify(self._arrivals)

    def discard(self, queue: CommandQueue) -> None:
        """Drop a queue."""
        self.ranking.discard(queue)
        self._cells.pop(queue).clear()

    def oldest(self) -> float:
        """Return when the oldest head arrived."""
        arrivals = self._arrivals
        while arrivals:
            if self._is_here(arrivals[0]):
                return arrivals[0][0]
            heapq.heappop(arrivals)
        return inf

    @staticmethod
    def _is_here(arrival: tuple[float, int, _Cell]) -> bool:
        arrived, _, cell = arrival
        return bool(cell) and bool(cell[0].pending) and cell[0].pending[0].arrived == arrived


class Waiting:
    """The queues that wait, in the order in which they came."""

    __slots__ = ("_lanes", "_numbers", "_of", "_tenants", "_urgent")

    def __init__(self) -> None:
        self._of: dict[CommandQueue, int] = {}  # the kind of each queue's head
        self._lanes: dict[int, Lane] = {}
        self._numbers = count()
        self._tenants: dict[str, int] = {}
        self._urgent: dict[CommandQueue, None] = {}

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[CommandQueue]:
        return iter(self._of)

    def __contains__(self, queue: object) -> bool:
        return queue in self._of

    def add(self, queue: CommandQueue) -> None:
        """Add a queue, or take note of its new head or priority."""
        head = queue.pending[0]
        kind = self._of.get(queue)
        if kind is None:
            tenant = queue.program.tenant
            self._tenants[tenant] = self._tenants.get(tenant, 0) + 1
        elif kind != head.kind:
            self._lanes[kind].discard(queue)
        self._of[queue] = head.kind
        lane = self._lanes.get(head.kind)
        if lane is None:
            lane = self._lanes[head.kind] = Lane(self._numbers)
        lane.add(queue, head.arrived, next(self._numbers))
        if queue.priority != _NORMAL:
            self._urgent[queue] = None
        else:
            self._urgent.pop(queue, None)

    def discard(self, queue: CommandQueue) -> bool:
        """Drop a queue; returns whether it was here."""
        kind = self._of.pop(queue, None)
        if kind is None:
            return False
        self._lanes[kind].discard(queue)
        self._urgent.pop(queue, None)
        tenant = queue.program.tenant
        self._tenants[tenant] -= 1
        if not self._tenants[tenant]:
            del self._tenants[tenant]
        return True

    def clear(self) -> None:
        """Drop all queues."""
        for queue in list(self._of):
            self.discard(queue)

    @property
    def tenants(self) -> Collection[str]:
        """The tenants whose queues wait."""
        return self._tenants.keys()

    @property
    def prioritised(self) -> bool:
        """Whether a queue has another priority than normal."""
        return bool(self._urgent)

    def lanes(self, order: Order, now: float) -> dict[int, tuple[float, Ranked]]:
        """Return for each kind of head when the oldest arrived, and the queues by rank, good until a change."""
        lanes = {kind: lane for kind, lane in self._lanes.items() if lane.ranking}
        return {kind: (lane.oldest(), lane.ranking.ordered(order, now)) for kind, lane in lanes.items()}

    def ranked(self, order: Order, now: float) -> list[CommandQueue]:
        """Return all queues by rank."""
        return [queue for _, _, queue in heapq.merge(*(ranked for _, ranked in self.lanes(order, now).values()))]
