"""Finds programs whose commands kill engines, among those that were in the step in which one died."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from tartlet_control.core.lifecycle import Lifecycle
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.programs import Place, ProgramState

DEATHS_ALONE: Final = 2
"""A program that was alone in the steps in which so many engines died, one after the other, ends."""


def count_death(programs: Collection[ProgramState]) -> None:
    """Note that an engine died while it computed for these programs."""
    for program in programs:
        program.deaths += 1
        program.alone = program.alone + 1 if len(programs) == 1 else 0


class Trials:
    """The programs that are tried one by one: each was in the step in which its last engine died.

    A trial ends once all that the dead engine had of the program is answered. From the second death on a program shares
    no step with others, so the next death tells whether the program is the cause.
    """

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self.running: dict[EngineState, Place] = {}
        """The program that is tried on each engine."""

    def begin(self, engine: EngineState, place: Place) -> None:
        """Try a program on an engine."""
        self.running[engine] = place
        if place.program.deaths > 1:
            self._lifecycle.batchers[engine].only = place.program

    def lose(self, engine: EngineState) -> None:
        """Forget the trial on an engine that is lost."""
        self.running.pop(engine, None)

    def forget_ended(self) -> None:
        """End the trials of programs that have ended."""
        for engine, place in list(self.running.items()):
            if not place.program.live:
                self._end(engine, place)

    def settled(self, engine: EngineState) -> None:
        """End the trial on an engine, after one of its steps, once all that the dead engine had is answered."""
        place = self.running.get(engine)
        if place is None or place.recovery is not None:
            return
        until = place.until
        if all(q.settled >= n or (not q.pending and q.settled == q.dispatched) for q, n in until.items()):
            self._end(engine, place)

    def _end(self, engine: EngineState, place: Place) -> None:
        self.running.pop(engine, None)
        place.until = {}
        place.program.deaths = place.program.alone = 0
        batcher = self._lifecycle.batchers.get(engine)
        if batcher is not None:
            batcher.only = None


def ordinal(count: int) -> str:
    """Return how a count of at least 2 is read: "second", "3th" and so on."""
    return {2: "second"}.get(count, f"{count}th")
