"""Whether the operator still hears from the API server."""

from __future__ import annotations

import asyncio
from typing import Final

from tartlet_common.clock import Clock
from tartlet_common.errors.registry import Unavailable
from tartlet_common.process.role import Notify

_PULSE_S: Final = 5.0
"""How often a silent operator listens whether it hears something again."""


class Pulse:
    """Honest readiness: watching works as long as events come, and the Lease's renewals make some.

    Whoever renews the Lease and hears nothing of it for twice as long as it takes to be unready has lost its watches
    for good, and ends: another, or the next life of this one, does better.
    """

    def __init__(self, clock: Clock, notify: Notify, silence_s: float) -> None:
        """`silence_s` 0: nothing makes events, so silence means nothing."""
        self._clock = clock
        self._notify = notify
        self._silence_s = silence_s
        self._heard_s = clock.now()

    def heard(self) -> None:
        """An event came."""
        self._heard_s = self._clock.now()

    def age(self) -> float:
        """Since the last event, s."""
        return self._clock.now() - self._heard_s

    async def run(self) -> None:
        """Tell the probes until cancelled.

        Raises:
            Unavailable: no event came for too long.
        """
        well = True
        while True:
            silent = bool(self._silence_s) and self.age() >= self._silence_s
            if silent == well:
                self._notify.set_ready(f"no event of the API server for {self.age():.0f} s" if silent else "")
            well = not silent
            if silent and self.age() > 2 * self._silence_s:
                raise Unavailable(what="the API server's events", detail=f"none came for {self.age():.0f} s")
            await asyncio.sleep(max(self._silence_s - self.age(), _PULSE_S))  # before that it can't be silent
