"""Which engine a suspended place takes, and how many places may begin at once.

Beginning a place takes control's own time: a plan, the pages, the commands. An engine's death may leave a thousand
places to begin, and meanwhile nobody gets a step. So each engine has only as much begun as its next step can hold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from tartlet_control.calls.registry import RUNS_LAYERS
from tartlet_control.rebuild import room
from tartlet_control.sharing import adopting
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.programs import Place

MOST_BEGUN: Final = 32
"""Most places that begin on one engine before it is given another step."""


class Pace:
    """Counts for each engine what was begun and has not been sent."""

    def __init__(self, making: Iterable[Place]) -> None:
        """`making`: places whose state is being made again."""
        self._begun: dict[EngineState, int] = {}
        self._tokens: dict[EngineState, int] = {}
        self.ahead: set[EngineState] = set()
        """Engines that have enough for their next step."""
        for place in making:
            self._count(place)

    def begin(self, place: Place) -> None:
        """Count a place that has begun."""
        engine = place.engine
        assert engine is not None
        self._begun[engine] = self._begun.get(engine, 0) + 1
        self._count(place)
        if self._begun[engine] >= MOST_BEGUN:
            self.ahead.add(engine)

    def _count(self, place: Place) -> None:
        engine = place.engine
        assert engine is not None
        tokens = self._tokens[engine] = self._tokens.get(engine, 0) + unsent_tokens(place)
        if tokens >= engine.spec.max_batch_tokens:
            self.ahead.add(engine)


def unsent_tokens(place: Place) -> int:
    """Return how many tokens of a place are to be computed again and have not been sent."""
    return sum(command.tokens for command in place.own_queue().pending if command.kind in RUNS_LAYERS)


def engine_for(place: Place, full: Collection[EngineState]) -> EngineState | None:
    """Return the engine that a suspended place takes, if one may take it; preferably one with room.

    Of several, one that still has rows of the place, then the place's engine before control died, then one that isn't
    `full`, then the one with the fewest programs.
    """
    recovery = place.recovery
    assert recovery is not None
    chosen = room.candidates(place)
    if len(chosen) < 2:
        return chosen[0] if chosen else None
    return min(
        [e for e in chosen if room.fits(e, recovery.need)] or chosen,
        key=lambda e: (-adopting.likeness(place, e), e.id != recovery.home, e in full, len(e.program_ids)),
    )
