"""Places contexts on engines: gathers what the model's placement is told, and applies what it decides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from tartlet_common.errors.registry import NoEngine
from tartlet_control.calls.embed import EmbedTxt
from tartlet_control.calls.forward import Forward
from tartlet_control.calls.kv import Alloc
from tartlet_control.calls.registry import RUNS_LAYERS
from tartlet_control.calls.tables import Table
from tartlet_control.core.lifecycle import Lifecycle
from tartlet_control.core.places.freeing import free_place
from tartlet_control.core.places.holding import all_queues, queues
from tartlet_control.core.pool_orders import PoolOrders
from tartlet_control.order.book import Thread
from tartlet_control.placement.policies import Placement
from tartlet_control.placement.view import Beginning, EngineView, HeldTokens, Hints, View, nothing_held
from tartlet_control.rebuild.logs import settle
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.ledger import PAGES
from tartlet_control.tables.models import ServedModel
from tartlet_control.tables.programs import Command, Place

ACTIVE_S: Final = 1.0
"""A thread that was idle for longer doesn't count as a call."""
_MOST_TOKENS: Final = 8192
"""Tokens of a beginning that are looked at."""
_MUCH: Final = 1024


class Placing:
    """Chooses the engine of each place that has none."""

    def __init__(self, lifecycle: Lifecycle, orders: PoolOrders) -> None:
        self._lifecycle = lifecycle
        self._orders = orders
        self._now = 0.0
        self._calls: dict[EngineState, int] = {}
        """Calls of each engine, counted once between two pumps."""
        self._turns: dict[ServedModel, int] = {}
        self.held: HeldTokens = nothing_held
        """Says which engines have pages of a beginning."""
        self.homes: Mapping[str, Mapping[str, str]] = {}
        """For programs of an earlier control, the engines where they were, by the model's digest."""

    def begin(self, now: float) -> None:
        """Forget the counts of the last time."""
        self._now = now
        self._calls.clear()

    def choose(self, place: Place) -> EngineState:
        """Return the engine that a place takes.

        Raises:
            NoEngine: no engine of the model is ready.
        """
        model, program = place.model, place.program
        engines = {e.id: e for e in model.candidates(program.reach)}
        if not engines:
            raise NoEngine
        if len(engines) == 1:
            [chosen] = engines.values()
        else:
            turn = self._turns.get(model, 0)
            self._turns[model] = turn + 1
            policy = self.policy(model)
            hints = self._hints(place)
            place.sent_before = _num_sent(place)
            place.long = hints.tokens > policy.short_tokens
            held = (self.held if policy.name == "locality" else nothing_held)(self._beginning(place))
            fitting = [e for e in engines.values() if e.pools[PAGES].num_available >= hints.pages] or engines.values()
            views = (self.view(e, held.get(e.id, 0), full=policy.name == "locality") for e in fitting)
            view = View(tuple(sorted(views, key=lambda e: e.id)), turn)
            chosen = engines[policy.place(view, hints)]
        if chosen in self._calls:
            self._calls[chosen] += 1
        return chosen

    # ---- contexts after the first -----------------------------------------------------------------------------------

    def goes_anew(self, place: Place, head: Command) -> bool:
        """Return whether the engine of the context that a command begins is to be chosen anew.

        The program holds nothing where it is, so nothing has to be made again elsewhere. `leave` comes next.
        """
        if head.kind or place.rows or any(place.held) or place.grammars or place.replay is not None:
            return False
        model = place.model
        if _num_sent(place) == place.sent_before:  # the context hasn't begun: its first command may wait for room
            return self._has_room_elsewhere(place)
        several = len(model.engines) > 1 and len(model.candidates(place.program.reach)) > 1
        return several and self.policy(model).places_anew and not any(q.poison for q in all_queues(place))

    def _has_room_elsewhere(self, place: Place) -> bool:
        engine, model = place.engine, place.model
        if engine is None or len(model.engines) == 1:
            return False
        pages = self._hints(place).pages
        if engine.pools[PAGES].num_available >= pages:
            return False
        return any(e.pools[PAGES].num_available >= pages for e in model.candidates(place.program.reach))

    def leave(self, place: Place) -> bool:
        """Take a place that holds nothing off its engine. Returns False as long as the engine owes it answers."""
        engine = place.engine
        if engine is None:
            return True
        settle(place)
        if place.log or any(queue.dispatched > queue.settled for queue in all_queues(place)):
            return False
        batcher, since = self._lifecycle.batchers[engine], self._now - ACTIVE_S
        if engine in self._calls:
            self._calls[engine] -= sum(_is_active(queue.thread, since) for queue in place.program.queues.values())
        free_place(place, engine)
        place.engine, place.last = None, engine.id
        if place.long:
            place.home = engine.id
        for queue in all_queues(place):
            batcher.forget(queue)
            queue.lane = -1
        return True

    # ---- what a placement is told -----------------------------------------------------------------------------------

    def policy(self, model: ServedModel) -> Placement:
        """Return the placement of a model: that of the first of its pools with one, or control's own."""
        return self._orders.placement_of(sorted({e.home.path for e in model.engines if e.home.pool}))

    def view(self, engine: EngineState, held: int = 0, *, full: bool = True) -> EngineView:
        """Return what a placement is told of an engine; `full`: with the times, which take a walk over what waits."""
        batcher = self._lifecycle.batchers[engine]
        waiting_s = token_s = 0.0
        if full:
            waiting_s = batcher.waiting_s
            token_s = batcher.times.predict(2 * _MUCH) - batcher.times.predict(_MUCH)
        return EngineView(
            engine.id,
            self._num_calls(engine),
            len(engine.program_ids),
            waiting_s,
            engine.pools[PAGES].num_available,
            token_s / _MUCH,
            held,
        )

    def _num_calls(self, engine: EngineState) -> int:
        calls = self._calls.get(engine)
        if calls is None:
            since = self._now - ACTIVE_S
            calls = 0
            for program in self._lifecycle.placed_on(engine):
                calls += sum(_is_active(queue.thread, since) for queue in program.queues.values())
            self._calls[engine] = calls
        return calls

    def _hints(self, place: Place) -> Hints:
        tokens = pages = 0
        for command in _first_commands(place):
            if command.kind in RUNS_LAYERS:
                tokens += command.tokens
            elif type(command) is Table:
                pages += command.new_rows
            elif type(command) is Alloc and command.pool == PAGES:
                pages += len(command.ids)
        return Hints(tokens, pages, place.home, place.last)

    @staticmethod
    def _beginning(place: Place) -> Beginning:
        tokens: list[int] = []
        adapter: int | None = None
        for command in _first_commands(place):
            if isinstance(command, Forward):
                if adapter not in {None, command.adapter}:
                    break
                adapter = command.adapter
            if type(command) is EmbedTxt:
                if command.from_slots or command.positions[:1] != [len(tokens)]:
                    break
                tokens += command.sources
        spec = place.model.spec
        return Beginning(
            place.program.tenant,
            spec.model_digest,
            spec.page_size,
            tuple(tokens[:_MOST_TOKENS]),
            place.model.adapter_digest(adapter or 0),
        )


def _is_active(thread: Thread, since: float) -> bool:
    return thread.active and (thread.idle_since is None or thread.idle_since >= since)


def _num_sent(place: Place) -> int:
    return sum(queue.dispatched for queue in all_queues(place))


def _first_commands(place: Place) -> Iterator[Command]:
    """Yield what waits in the first queue of a place that has anything."""
    for queue in queues(place):
        if queue.pending:
            yield from queue.pending
            return
