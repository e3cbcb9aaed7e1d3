"""Whether the operator still hears from the API server."""

from __future__ import annotations

import asyncio
from typing import Final

from tartlet_common.clock import Clock
from tartlet_common.errors.registry import Unavailable
from tartlet_common.process.role import Notify

_PULSE_S: Final = 5.0
"""How often a silent operator checks whether events come again."""


class Pulse:
    """Readiness from events: watching works as long as events come, and renewals of the Lease make events.

    An operator that hears of no renewal becomes unready. After twice as long it has lost its watches for good, and
    ends, so that another replica, or its next start, does better.
    """

    def __init__(self, clock: Clock, notify: Notify, silence_s: float) -> None:
        """`silence_s`: silence after which the operator is unready; 0: nothing makes events, and silence is normal."""
        self._clock = clock
        self._notify = notify
        self._silence_s = silence_s
        self._heard_s = clock.now()

    def heard(self) -> None:
        """Note that an event came."""
        self._heard_s = self._clock.now()

    def age(self) -> float:
        """Return the time since the last event, s."""
        return self._clock.now() - self._heard_s

    async def run(self) -> None:
        """Tell the probes whether events come, until cancelled.

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
            await asyncio.sleep(max(self._silence_s - self.age(), _PULSE_S))  # before that the operator can't be silent
