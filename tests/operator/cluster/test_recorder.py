"""Which events are posted, and which repeat an event posted a short time ago."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from tartlet_common.clock import ManualClock
from tartlet_operator.api.events import ObjectEvent
from tartlet_operator.api.meta import Key
from tartlet_operator.api.reasons import EventReason
from tartlet_operator.cluster.recorder import Recorder

POOL = Key("EnginePool", "ns", "pool")
READY = ObjectEvent(EventReason.POOL_READY, "engines that take programs: 1")
LOST = ObjectEvent(EventReason.POOL_DEGRADED, "EngineLost: pod-0", warning=True)
GONE = ObjectEvent(EventReason.ENGINE_DRAINED, "pod-0 has gone")


class Posted:
    """An API that records the reasons of posted events."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    async def create(self, manifest: dict[str, Any]) -> None:
        self.reasons.append(manifest["reason"])


async def posted(recorder: Recorder, api: Posted, *events: ObjectEvent, uid: str = "uid") -> list[str]:
    """Return the reasons of those events that are posted."""
    api.reasons.clear()
    for event in events:
        recorder.post(POOL, uid, event)
    task = asyncio.create_task(recorder.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    return list(api.reasons)


async def test_a_repeated_event_is_suppressed_unless_another_state_came_between() -> None:
    clock, api = ManualClock(), Posted()
    recorder = Recorder(cast("Any", api), clock, "here")
    ready, lost, gone = READY.reason, LOST.reason, GONE.reason
    assert await posted(recorder, api, READY, READY, GONE, GONE) == [ready, gone]
    assert await posted(recorder, api, LOST, LOST, READY, GONE, LOST) == [lost, ready, lost]
    assert await posted(recorder, api, READY, uid="another") == [ready]
    assert await posted(recorder, api, LOST) == []
    clock.advance(601)
    assert await posted(recorder, api, LOST, GONE) == [lost, gone]


async def test_an_object_that_keeps_changing_soon_posts_no_more_events() -> None:
    api = Posted()
    recorder = Recorder(cast("Any", api), ManualClock(), "here")
    assert len(await posted(recorder, api, *[READY, LOST] * 100)) == 20


async def test_long_messages_are_cut_and_soon_forgotten() -> None:
    clock, api = ManualClock(), Posted()
    recorder = Recorder(cast("Any", api), clock, "here")
    long = ObjectEvent(EventReason.RECONCILE_FAILED, "x" * 1_000_000, warning=True)
    assert len(await posted(recorder, api, long, long)) == 1
    assert {len(message) for _, _, message in recorder._posted} == {1000}
    clock.advance(601)
    assert await posted(recorder, api, READY) == [READY.reason]
    assert [reason for _, reason, _ in recorder._posted] == [READY.reason]


async def test_each_change_of_a_pools_size_is_news() -> None:
    api = Posted()
    recorder = Recorder(cast("Any", api), ManualClock(), "here")
    scaled = ObjectEvent(EventReason.POOL_SCALED, "0 -> 1: runs wait for an engine")
    assert len(await posted(recorder, api, scaled, scaled)) == 2
    assert len(await posted(recorder, api, *[scaled] * 100)) == 8, "within its bound"
