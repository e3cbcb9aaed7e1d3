"""Takes programs off engines that are cordoned or drained, to others with room.

A program leaves between two of its commands, and few programs are on their way at once: the others go on meanwhile.
A program whose state can't be made again, or for which no engine has room, stays where it is.
"""

from __future__ import annotations

from typing import Final

from tartlet_common.errors.registry import WorkerLost
from tartlet_control.core.lifecycle import Lifecycle
from tartlet_control.core.rebuilder import Rebuilder
from tartlet_control.tables.engines import EngineState

AT_ONCE: Final = 4
"""Programs that may be on their way to another engine while more would leave theirs. More would only wait longer."""


class Moves:
    """Empties the engines that take no new programs."""

    def __init__(self, lifecycle: Lifecycle, rebuilder: Rebuilder) -> None:
        self._lifecycle = lifecycle
        self._rebuilder = rebuilder

    def pump(self, now: float) -> None:
        """Let programs leave engines that take no new ones, if another engine has room for them: the oldest first."""
        for engine in self._lifecycle.batchers:
            if engine.status != "ready" and engine.program_ids:
                self._empty(engine, now)

    def _empty(self, engine: EngineState, now: float) -> None:
        rebuilder = self._rebuilder
        for program in self._lifecycle.placed_on(engine):
            if rebuilder.num_moving >= AT_ONCE:
                return
            place = program.places[engine.model_index]
            if place.recovery is None and rebuilder.has_room(place):
                rebuilder.suspend(place, WorkerLost(engine=engine.id), now)
