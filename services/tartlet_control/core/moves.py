"""Takes programs off engines that are cordoned, drained or overloaded, to others with room.

A program leaves between two of its commands, and few programs are on their way at once: the others go on meanwhile.
A program whose state can't be made again, or for which no engine has room, stays where it is.
"""

from __future__ import annotations

from typing import Final

from tartlet_common.errors.registry import WorkerLost
from tartlet_control.core.lifecycle import Lifecycle
from tartlet_control.core.places.placing import Placing
from tartlet_control.core.rebuilder import Rebuilder
from tartlet_control.placement.balance import JOINED_S, OVERLOADED_S, comfortable, too_much
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.programs import Place

AT_ONCE: Final = 4
"""Programs that may be on their way to another engine while more would leave theirs. More would only wait longer."""
LOOK_S: Final = 0.25
"""Seconds between two looks at how the load is spread."""


class Moves:
    """Empties the engines that take no new programs, and relieves those that have too much."""

    def __init__(self, lifecycle: Lifecycle, rebuilder: Rebuilder, placing: Placing) -> None:
        self._lifecycle = lifecycle
        self._rebuilder = rebuilder
        self._placing = placing
        self._looked_s = 0.0
        self._since_s: dict[EngineState, float] = {}
        """Since when each engine has had too much."""
        self.balanced = 0
        """Programs that left an overloaded engine since control started."""

    def pump(self, now: float) -> None:
        """Let programs leave engines that take no new ones, if another engine has room for them: the oldest first."""
        for engine in self._lifecycle.batchers:
            if engine.status != "ready" and engine.program_ids:
                self._empty(engine, now)
        if now - self._looked_s >= LOOK_S and len(self._lifecycle.batchers) > 1:
            self._looked_s = now
            self._balance(now)

    def _empty(self, engine: EngineState, now: float) -> None:
        rebuilder = self._rebuilder
        for program in self._lifecycle.placed_on(engine):
            if rebuilder.num_moving >= AT_ONCE:
                return
            place = program.places[engine.model_index]
            if place.recovery is None and rebuilder.has_room(place):
                rebuilder.suspend(place, WorkerLost(engine=engine.id), now)

    def _balance(self, now: float) -> None:
        """Let one program leave each engine that has had too much for long, or that an engine has joined beside."""
        self._placing.begin(now)
        before, self._since_s = self._since_s, {}
        for model in dict.fromkeys(place.model for place in self._busy()):
            engines = {e.id: e for e in model.engines if e.status == "ready" and e.gone_since is None}
            views = [self._placing.view(e, full=False) for e in engines.values()]
            most = {v.id: self._room(engines[v.id], v.calls) for v in views}
            for source, target in too_much(views, most).items():
                engine, to = engines[source], engines[target]
                since = self._since_s[engine] = before.get(engine, now)
                joined = now - to.joined_s < JOINED_S
                if (joined or now - since >= OVERLOADED_S) and self._rebuilder.num_moving < AT_ONCE:
                    self._relieve(engine, to, now)

    def _room(self, engine: EngineState, calls: int) -> int:
        times = self._lifecycle.batchers[engine].times
        return comfortable(calls, engine.spec.max_batch_commands, times.predict(calls), times.predict(calls / 2))

    def _busy(self) -> list[Place]:
        """Return a place on each engine that has programs: its model has something to balance."""
        firsts = [next(iter(e.program_ids)) for e in self._lifecycle.batchers if e.program_ids]
        programs = [self._lifecycle.programs[i] for i in firsts]
        return [place for p in programs for place in p.places.values() if place.engine is not None]

    def _relieve(self, engine: EngineState, to: EngineState, now: float) -> None:
        """Let the program leave whose state is the least work to make again, of those that compute."""
        places = [p.places[engine.model_index] for p in self._lifecycle.placed_on(engine)]
        movable = [p for p in places if p.program.account.service_s >= p.made_at_s and self._may_go(p, to)]
        for place in sorted(movable, key=lambda p: p.program.num_pages):
            if self._rebuilder.suspend(place, WorkerLost(engine=engine.id), now, to=to):
                self.balanced += 1
                return

    def _may_go(self, place: Place, to: EngineState) -> bool:
        return place.program.reach.rank(to.home) is not None and self._rebuilder.may_leave(place)
