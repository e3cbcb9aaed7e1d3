"""Lets a program's first use of a model wait while the model's only engines restart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from tartlet_common.errors.registry import NoEngine
from tartlet_control.tables.programs import Place, ProgramState, Recovery


class Waiting(Protocol):
    """What holds places without an engine until one with room comes."""

    def take_back(self, place: Place, recovery: Recovery) -> None:
        """Let a place wait for an engine."""


def wait_for_engine(waiting: Waiting, place: Place, now: float) -> bool:
    """Let a place wait for its first engine. Returns False if the program may use an engine that takes no programs.

    A model without any engine has lost its engines a moment ago: a launch is refused otherwise. As after an engine's
    death, the program ends in NoEngine if no engine comes within `rebuild_grace_s`.

    Args:
        waiting: holds the place.
        place: has no engine, and has computed nothing yet.
        now: the time, in seconds.
    """
    if place.model.usable(place.program.reach):
        return False
    waiting.take_back(place, Recovery(place.model.spec, NoEngine(), now))
    return True


def refresh_unplaced(programs: Iterable[ProgramState]) -> None:
    """Give queues without an engine their model's spec, which its new first engine may have changed."""
    for program in programs:
        for queue in program.queues.values():
            if queue.place.engine is None:
                queue.spec = queue.place.model.spec
