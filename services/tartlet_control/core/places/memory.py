"""Finds room when an engine's pages, embeds or slots run out: programs give way, and none ends for it if it can wait.

A program that gives way is suspended: its commands wait, its pages are freed, and its state is made again when there is
room. Who gives way is decided by `order.yielding`. A command that must wait for room stays at the head of its queue.
Only where programs hold the room whose state can't be made again does one end: of a tenant over its share for one
within its own, else the newest (Pie 5.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from operator import itemgetter
from typing import Final, Protocol

from tartlet_common.clock import Clock
from tartlet_common.errors.registry import OutOfPages, TartletError, TenantOverShare
from tartlet_control.core.lifecycle import Lifecycle
from tartlet_control.core.places.holding import busy, cost, num_held, pending, pool_of, queues, waited_s
from tartlet_control.order import book
from tartlet_control.order.credit import SHARE, Credit
from tartlet_control.order.wanting import Turn, Wanting, turns
from tartlet_control.order.yielding import Holder, ending, over_share, yielding
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.ledger import PAGES, POOL_NAMES, TABLES
from tartlet_control.tables.programs import CommandQueue, Place

RETRY_S: Final = 0.05
"""A command that waits for room is looked at so often, if nothing that it knows of has changed."""
REST_S: Final = 0.25
"""A program that was idle for less comes back soon. It keeps its pages as long as others go on without them."""
FAIR_S: Final = 2.0
"""A program within its tenant's share waits so long for those over theirs that would have to be computed again."""
PATIENCE_S: Final = 10.0
"""A program within its tenant's share waits so long for busy ones over theirs that can't give way; then those end."""


_RESERVED: Final = 8
"""The last one in so many of an engine's numbers of page tables is for tenants within their share."""


class Waits(Exception):
    """Says that a command stays at the head of its queue until there is room."""


class Suspender(Protocol):
    """What takes programs off their engines and brings them back."""

    leaving: dict[Place, None]
    waiting: dict[Place, None]

    def give_way(self, place: Place, cause: TartletError, now: float) -> bool:
        """Suspend a place so that its pages come free. Returns False if it may not leave."""

    def may_leave(self, place: Place) -> bool:
        """Return whether a place's state could be made again, and isn't on its way already."""


class Memory:
    """Holds the queues whose head waits for room, and decides who gives way to them."""

    def __init__(self, lifecycle: Lifecycle, clock: Clock, weights: Mapping[str, float]) -> None:
        self._lifecycle = lifecycle
        self._clock = clock
        self.weights = weights
        """Of the tenants' shares; 1 for those that aren't named."""
        self.suspender: Suspender
        self.stalled: dict[CommandQueue, EngineState] = {}
        """Queues whose head waits for room on an engine."""
        self._credits: dict[EngineState, Credit] = {}
        self._seen_over: dict[EngineState, tuple[float, dict[str, int], frozenset[str]]] = {}
        self._seen: dict[EngineState, tuple[object, ...]] = {}
        self._turns: dict[EngineState, tuple[dict[Place, Turn], Turn | None]] = {}
        """While queues try again: the turns of programs without pages, and that of the first suspended one."""
        self._retried_s = 0.0

    # ---- who asks -------------------------------------------------------------------------------------------------

    def must_wait(self, place: Place) -> bool:
        """Return whether a program without pages comes after one that is suspended and waits to go on."""
        engine = place.engine
        if not self.suspender.waiting or engine is None or place.num_held(PAGES):
            return False
        now = self._clock.now()
        turns, first = self._turns.get(engine, ({}, None))
        if place in turns:
            return first is not None and first < turns[place]
        turn = self.turn(place, engine, now)
        return any(self.turn(other, engine, now) < turn for other in self._suspended(engine))

    def find_room(self, place: Place, pool_index: int, asked: int) -> bool:
        """Let others give way until `asked` things of a pool come free; some are missing now.

        Returns True if there is room now, and False if the program itself was ended.

        Raises:
            Waits: there will be room later.
        """
        engine, now = place.engine, self._clock.now()
        assert engine is not None
        if self._ask(place, engine, pool_index, asked, now) or self._end_fixed(place, engine, pool_index, asked, now):
            return True
        if not place.program.live:
            return False
        raise Waits

    def find_number(self, place: Place) -> bool:
        """Let others give way until there is a number for one more page table of a program that is placed.

        Returns True if there is one now, and False if the program itself was ended.

        Raises:
            TenantOverShare: the last eighth of an engine's numbers is for tenants within their share.
            Waits: there will be a number later.
        """
        engine = place.engine
        assert engine is not None
        if self._beyond_share(place, engine, 1):
            raise TenantOverShare(kind=POOL_NAMES[TABLES], total=engine.tables.total)
        return engine.takeable(TABLES, 1) >= 1 or self.find_room(place, TABLES, 1)

    def fits_tables(self, place: Place, engine: EngineState, asked: int) -> bool:
        """Return whether there are numbers for all page tables of a place that comes to an engine."""
        gave_way = place.recovery is not None and place.recovery.gave_way is engine
        return engine.takeable(TABLES, asked) >= asked and not (gave_way and self._beyond_share(place, engine, asked))

    def _beyond_share(self, place: Place, engine: EngineState, asked: int) -> bool:
        """Return whether a tenant over its share would get one of the last eighth of an engine's table numbers."""
        tables, tenant = engine.tables, place.program.tenant
        kept = tables.most // _RESERVED
        if engine.takeable(TABLES, asked + kept) >= asked + kept:
            return False
        held = {tenant: 0} | {p.tenant: tables.counts.get(p.tenant, 0) for p in self._lifecycle.placed_on(engine)}
        held[tenant] = tables.counts.get(tenant, 0) + asked
        return len(held) == 1 or tenant in over_share(held, tables.total, self.weights)

    def rank(self, place: Place, engine: EngineState, now: float) -> tuple[float, ...]:
        """Return where the order of an engine has a program; `round-robin` has the oldest program first."""
        order = self._lifecycle.batchers[engine].order
        if order.name == "round-robin":
            return (float(place.program.created),)
        threads = [q.thread for q in queues(place) if q.pending] or [q.thread for q in queues(place)]
        return min((order.rank(thread, now) for thread in threads), default=(float(place.program.created),))

    def turn(self, place: Place, engine: EngineState, now: float) -> tuple[bool, tuple[float, ...]]:
        """Return where a program has its turn for memory: tenants within their share first, then by rank."""
        return place.program.tenant in self._over(engine, now), self.rank(place, engine, now)

    def turns(self, engine: EngineState, now: float) -> dict[Place, Turn]:
        """Return where programs without pages have their turn: suspended ones, and those that wait for their first."""
        total = engine.pools[PAGES].total
        wanting = {place: place.recovery.need[PAGES] for place in self._suspended(engine) if place.recovery}
        for queue, stalled_on in self.stalled.items():
            if stalled_on is engine and queue.place not in wanting and not queue.place.num_held(PAGES):
                wanting[queue.place] = 1  # more isn't known before it asks
        programs = [Wanting(p, p.program.tenant, self.rank(p, engine, now), need) for p, need in wanting.items()]
        return turns(programs, self._shares(engine, now)[0], total, self.weights)

    def _suspended(self, engine: EngineState) -> Iterator[Place]:
        """Yield the suspended places of an engine that have something to do."""
        for place in self.suspender.waiting:
            if place.recovery is not None and place.recovery.gave_way is engine and pending(place):
                yield place

    def _over(self, engine: EngineState, now: float) -> frozenset[str]:
        """Return the tenants that hold more than their share of an engine's pages."""
        return self._shares(engine, now)[1]

    def _shares(self, engine: EngineState, now: float) -> tuple[dict[str, int], frozenset[str]]:
        """Return how many of an engine's pages each tenant holds, and which tenants have more than their share."""
        at, held, over = self._seen_over.get(engine, (-1.0, {}, frozenset()))
        if at == now:
            return held, over
        held = {}
        for program in self._lifecycle.placed_on(engine):
            pages = program.places[engine.model_index].num_held(PAGES)
            held[program.tenant] = held.get(program.tenant, 0) + pages
        for place in (*self.suspender.waiting, *(q.place for q in self.stalled)):
            held.setdefault(place.program.tenant, 0)
        over = over_share(held, engine.pools[PAGES].total, self.weights)
        self._seen_over[engine] = now, held, over
        return held, over

    def _ask(self, place: Place, engine: EngineState, pool_index: int, asked: int, now: float) -> bool:
        """Suspend who gives way. Returns whether there is room already."""
        pool = pool_of(engine, pool_index)
        coming = sum(num_held(p, pool_index) for p in self.suspender.leaving if p.engine is engine)
        missing = asked - engine.takeable(pool_index, asked) - coming
        if missing > 0:
            asker, others = self._holders(place, engine, pool_index, now)
            gets = asked if place.recovery is None else place.recovery.need[pool_index]
            asker = replace(asker, held=asker.held + gets - missing)  # what is free counts as its tenant's, too
            error = OutOfPages(kind=POOL_NAMES[pool_index], total=pool.total)
            credit = self.credit(engine)
            for holder in yielding(
                asker,
                others,
                missing,
                pool.total,
                self.weights,
                credit.most_spent,
                tired=waited_s(place, now) >= FAIR_S,
                tenants=self._shares(engine, now)[0],
            ):
                if self.suspender.give_way(holder.key, error, now):
                    holder.key.recovery.owed = holder.cost
                    credit.spend(holder.cost)
        return engine.takeable(pool_index, asked) >= asked

    def credit(self, engine: EngineState) -> Credit:
        """Return how much of an engine's state may be computed again."""
        credit = self._credits.get(engine)
        if credit is None:
            self._credits = {e: c for e, c in self._credits.items() if e in self._lifecycle.batchers}
            credit = self._credits[engine] = Credit(SHARE * engine.pools[PAGES].total * engine.spec.page_size)
        credit.earn(engine.computed_tokens - engine.remade_tokens)
        return credit

    def make_way(self, place: Place, engine: EngineState, need: tuple[int, int, int], now: float) -> None:
        """Let others give way to a suspended program that comes before them."""
        for pool_index, asked in enumerate(need):
            if engine.takeable(pool_index, asked) < asked:
                self._ask(place, engine, pool_index, asked, now)
                self._end_fixed(place, engine, pool_index, asked, now)

    def _holders(self, place: Place, engine: EngineState, pool_index: int, now: float) -> tuple[Holder, list[Holder]]:
        asker = Holder(
            place,
            place.program.tenant,
            num_held(place, pool_index) if place.engine is engine else 0,
            self.rank(place, engine, now),
            may_yield=place.recovery is not None or self.suspender.may_leave(place),
            created=place.program.created,
        )
        others = []
        for program in self._lifecycle.placed_on(engine):
            other = program.places[engine.model_index]
            if other is not place:
                may_leave = self.suspender.may_leave(other)
                others.append(
                    Holder(
                        other,
                        program.tenant,
                        num_held(other, pool_index),
                        self.rank(other, engine, now),
                        idle=not busy(other),
                        may_yield=may_leave,
                        fresh=program.account.service_s < other.made_at_s,
                        fixed=other.recovery is None and not may_leave,
                        created=program.created,
                        rests=self._rests(other, engine, now),
                        stalled=other in self.suspender.leaving or program.session.held or self._stalled(other),
                        cost=cost(other, engine),
                    )
                )
        return asker, others

    def _stalled(self, place: Place) -> bool:
        """Return whether all that a place has to do waits for room, or for a queue that does."""
        own = [queue for queue in queues(place) if queue.pending or queue.dispatched > queue.settled]
        if not any(queue in self.stalled for queue in own):
            return False
        waits = (q in self.stalled or not q.pending[0].kind for q in own if q.dispatched == q.settled)
        return all(waits) and all(q.dispatched == q.settled for q in own)

    def _rests(self, place: Place, engine: EngineState, now: float) -> bool:
        """Return whether a place has been idle for so long that its pages are better used by others."""
        if busy(place) or place.recovery is not None:
            return False
        idle = [q.thread.idle_since for q in queues(place) if q.thread.idle_since is not None]
        takes_s = self._lifecycle.batchers[engine].times.predict(cost(place, engine))
        return not idle or now - max(idle) >= max(REST_S, takes_s)

    def _end_fixed(self, place: Place, engine: EngineState, pool_index: int, asked: int, now: float) -> bool:
        """End programs if the room that they hold can't come free otherwise, or else the asking program.

        A place that is suspended asks too: it never ends, and none of its own tenant's programs ends for it.

        Returns whether there is room now.
        """
        pool = pool_of(engine, pool_index)
        asker, others = self._holders(place, engine, pool_index, now)
        tired = waited_s(place, now) >= PATIENCE_S
        free = pool.num_available
        chosen = ending(asker, others, asked, free, pool.total, self.weights, tired=tired)
        if place.recovery is not None and any(holder.tenant == asker.tenant for holder in chosen):
            return False
        for holder in chosen:
            kind = OutOfPages if holder.tenant == asker.tenant else TenantOverShare
            self._lifecycle.kill(holder.key.program, kind(kind=POOL_NAMES[pool_index], total=pool.total))
        return bool(chosen) and place.program.live and engine.takeable(pool_index, asked) >= asked

    # ---- who waits ------------------------------------------------------------------------------------------------

    def stall(self, queue: CommandQueue) -> None:
        """Note that the head of a queue waits for room."""
        engine = queue.place.engine
        assert engine is not None
        self.stalled[queue] = engine
        book.waits(queue.thread, self._clock.now())

    def retry(self, advance: Callable[[CommandQueue], None]) -> None:
        """Let the queues whose head waits for room try again, each engine's in the order of its programs."""
        if not self.stalled:
            return
        now = self._clock.now()
        late = now - self._retried_s >= RETRY_S
        self._seen_over.clear()
        self._seen = {engine: seen for engine, seen in self._seen.items() if engine in self._lifecycle.batchers}
        by_engine: dict[EngineState, list[CommandQueue]] = {}
        for queue, engine in list(self.stalled.items()):
            place = queue.place
            if not queue.program.live or place.recovery is not None or place.engine is not engine or not queue.pending:
                del self.stalled[queue]
                if queue.program.live and place.recovery is None and queue.pending:
                    advance(queue)  # its place has another engine by now
            else:
                by_engine.setdefault(engine, []).append(queue)
        for engine, stalled in by_engine.items():
            if late or self._seen.get(engine) != self._state(engine):
                self._retried_s = now
                turns = self.turns(engine, now)
                self._turns[engine] = turns, min((turns[p] for p in self._suspended(engine)), default=None)
                ordered = [(turns.get(q.place) or self.turn(q.place, engine, now), q) for q in stalled]
                for _, queue in sorted(ordered, key=itemgetter(0)):
                    if self.must_wait(queue.place):
                        continue
                    self.stalled.pop(queue, None)
                    advance(queue)
                    if queue in self.stalled and self._goes_on(engine):
                        break  # there will be room: those behind it don't take it
                del self._turns[engine]
                self._seen[engine] = self._state(engine)

    def _goes_on(self, engine: EngineState) -> bool:
        """Return whether room will come free by itself: anything computes on an engine, or is on its way off it."""
        batcher = self._lifecycle.batchers[engine]
        return bool(batcher.in_flight or batcher.waiting) or any(p.engine is engine for p in self.suspender.leaving)

    def _state(self, engine: EngineState) -> tuple[object, ...]:
        suspender = self.suspender
        free = (*(p.num_available for p in engine.pools), engine.tables.num_available)
        return (*free, len(suspender.leaving), len(suspender.waiting))

    def before(self, place: Place, turns: Mapping[Place, Turn], engine: EngineState, now: float) -> bool:
        """Return whether a queue that waits for room on an engine comes before a suspended program.

        Args:
            place: the suspended program.
            turns: what `turns` returned.
            engine: the engine that it left.
            now: in seconds.
        """
        if not self.stalled:
            return False
        tenant = place.program.tenant
        within = self.turn(place, engine, now)  # its own tenant's programs that have pages go by rank alone
        own = turns.get(place, within)
        stalled = (queue.place for queue, stalled_on in self.stalled.items() if stalled_on is engine)
        return any(
            turns[other] < own
            if other in turns
            else self.turn(other, engine, now) < (within if other.program.tenant == tenant else own)
            for other in stalled
        )
