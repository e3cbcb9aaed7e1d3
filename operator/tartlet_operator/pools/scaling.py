"""Decides how many engines a pool should have, from the work that waits for it. Pure.

The work is the device time of all commands that wait (`tartlet.work.waiting`), so one number covers long prompts and
many programs. More engines come at once. Engines go when the work of a whole window would have done without them, and
when the others had time for what they computed: engines that are busy with nothing waiting stay.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from tartlet_operator.api.autoscaling import Autoscaling

_SPARE: Final = 0.1
"""Part of an engine's time that may be missing before the engine counts as busy: one program alone takes nearly all."""
_OLDEST_S: Final = 5.0
"""A pool that was not looked at for so long begins a new window."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a pool has to do now.

    Args:
        waiting_s: device time that waits, over all its engines.
        busy: engines' worth of device time that it computes, such as 1.5 of 2 engines.
        programs: on its engines.
        held: runs wait for an engine of the pool.
    """

    waiting_s: float = 0.0
    busy: float = 0.0
    programs: int = 0
    held: bool = False


@dataclass(slots=True)
class Window:
    """How many engines a pool needed lately."""

    since_s: float = 0.0
    needs: deque[tuple[float, int]] = field(
        default_factory=deque
    )  # falling numbers: what a later one covers is left out

    def add(self, now: float, need: int, keep_s: float) -> None:
        """Note a need; forget those older than `keep_s`."""
        if not self.needs or now - self.needs[-1][0] > _OLDEST_S:
            self.needs.clear()
            self.since_s = now
        while self.needs and self.needs[-1][1] <= need:
            self.needs.pop()
        self.needs.append((now, need))
        while self.needs[0][0] < now - keep_s:
            self.needs.popleft()

    def most(self, now: float, keep_s: float) -> int | None:
        """Return the most engines that were needed at once; None before a whole window was seen."""
        return self.needs[0][1] if self.needs and now - self.since_s >= keep_s else None


def needed(scaling: Autoscaling, load: Load) -> int:
    """Return the engines that the work needs now, without bounds.

    Example:
        >>> four = Autoscaling(max_replicas=4)
        >>> [needed(four, Load(waiting_s=s, programs=1)) for s in (0.0, 1.0, 2.5)]
        [1, 1, 3]
        >>> needed(four, Load()), needed(four, Load(held=True))
        (0, 1)
    """
    least = 1 if load.programs or load.held or load.busy else 0
    return max(least, math.ceil(load.waiting_s * 1000 / scaling.target_waiting_milliseconds))


def decide(scaling: Autoscaling, replicas: int, load: Load, window: Window, now: float) -> int:
    """Return the number of engines that the pool should have; notes in `window` what it needs now.

    Args:
        scaling: the pool's bounds.
        replicas: what its spec asks for.
        load: what it has to do.
        window: what it needed lately.
        now: a monotonic time, s.
    """
    need = needed(scaling, load)
    window.add(now, max(need, min(replicas, math.ceil(load.busy - _SPARE))), scaling.scale_down_seconds)
    least = window.most(now, scaling.scale_down_seconds)
    wanted = max(need, replicas if least is None else min(replicas, least))
    return max(scaling.min_replicas, min(scaling.max_replicas, wanted))
