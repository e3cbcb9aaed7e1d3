"""An operator that gets no events becomes unready and then ends, so that another replica can lead."""

from __future__ import annotations

import asyncio

import pytest

from tartlet_common.clock import ManualClock
from tartlet_common.errors.registry import Unavailable
from tartlet_common.process.health import Health
from tartlet_common.process.role import Notify
from tartlet_operator.machinery.pulse import Pulse


async def test_silence_makes_the_operator_unready_and_then_ends_it() -> None:
    clock, health = ManualClock(), Health()
    notify = Notify(None, health)
    notify.ready("here")
    pulse = Pulse(clock, notify, silence_s=20.0)
    clock.advance(39.0)
    pulse.heard()
    clock.advance(21.0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(pulse.run(), 0.05)
    assert health.decide("/readyz") == (503, "no event of the API server for 21 s\n")
    clock.advance(20.0)
    with pytest.raises(Unavailable, match="none came for 41 s"):
        await asyncio.wait_for(pulse.run(), 0.05)


async def test_where_nothing_makes_events_silence_means_nothing() -> None:
    clock = ManualClock()
    pulse = Pulse(clock, Notify(None, Health()), silence_s=0.0)
    clock.advance(1000.0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(pulse.run(), 0.05)
