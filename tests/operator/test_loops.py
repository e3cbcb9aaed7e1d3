"""When pools are looked at because of what control tells."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tartlet_common.clock import ManualClock
from tartlet_common.errors import Unavailable
from tartlet_operator.context import ControlView
from tartlet_operator.inferlet_status import PoolSeen
from tartlet_operator.loops import PROGRAMS_S, ControlPoll
from tartlet_operator.meta import Key
from tartlet_operator.store import InferletSeen, Store
from tartlet_operator.work_queue import WorkQueue


class Control:
    """Tells what the test says."""

    def __init__(self) -> None:
        self.engine = {"id": "p-0", "state": "ready", "programs": 0}
        self.asked = 0
        self.news = asyncio.Event()
        self.gone = asyncio.Event()
        self.silent = False

    async def parted(self) -> None:
        await self.gone.wait()

    async def state(self) -> dict[str, Any]:
        self.asked += 1
        self.news.set()
        if self.silent:
            raise Unavailable(what="control", detail="it has only begun")
        return {"incarnation": "one", "engines": [dict(self.engine)]}


async def test_states_are_told_at_once_and_programs_now_and_then() -> None:
    control, clock, store, queue = Control(), ManualClock(), Store(), WorkQueue()
    store.pools[Key("EnginePool", "ns", "p")] = PoolSeen("p", "m", ready=True)
    ctx: Any = SimpleNamespace(
        control=control, clock=clock, store=store, queue=queue, view=ControlView(), namespaces=[], settings=None
    )
    poll = ControlPoll(ctx)

    async def looked_at() -> bool:
        before = queue._pending.copy()
        queue._pending.clear()
        await poll.once()
        told = bool(queue._pending)
        queue._pending.clear()
        assert not before
        return told

    assert await looked_at()
    assert not await looked_at()
    seen = []
    for second in range(1, 61):  # a minute of one launch a second
        clock.advance(1.0)
        control.engine["programs"] = second
        seen.append(await looked_at())
    assert sum(seen) == 60 / PROGRAMS_S
    assert ctx.view.programs == {"p-0": 60}
    control.engine["state"] = "draining"
    assert await looked_at()
    clock.advance(3600.0)
    assert not await looked_at(), "nothing has changed"


async def test_without_pools_control_is_asked_seldom_and_soon_when_something_stirs() -> None:
    control, store = Control(), Store()
    ctx: Any = SimpleNamespace(
        control=control, clock=ManualClock(), store=store, queue=WorkQueue(), view=ControlView(), namespaces=[]
    )
    ctx.settings, ctx.stirred = SimpleNamespace(poll_s=0.02), asyncio.Event()
    poll = ControlPoll(ctx)

    async def asked(more: int) -> None:
        before = control.asked
        async with asyncio.timeout(0.25):  # less than the pause
            while control.asked < before + more:
                control.news.clear()
                await control.news.wait()

    running = [asyncio.ensure_future(poll.run()), asyncio.ensure_future(poll.mind())]
    try:
        await asked(1)
        await asyncio.sleep(0.15)
        assert control.asked == 1
        ctx.stirred.set()  # a pool has come
        await asked(1)
        control.gone.set()  # until it answers, it is asked as often as ever
        await asked(3)
        control.gone.clear()
        control.silent = True  # though there is a connection, which nobody will lose
        ctx.stirred.set()
        await asked(4)
        control.silent = False
        await asked(1)
        answered = control.asked
        await asyncio.sleep(0.15)
        assert control.asked == answered
        store.pools[Key("EnginePool", "ns", "p")] = PoolSeen("p", "m", ready=True)
        ctx.stirred.set()
        await asked(4)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def test_a_catalogue_is_swept_once_all_inferlets_have_been_seen() -> None:
    clock, store, queue = ManualClock(), Store(), WorkQueue()
    control = Control()
    held = {"kept": "1", "deleted while nobody looked": "2"}
    asked = []

    async def programs(tenant: str) -> list[Any]:
        asked.append(tenant)
        if len(asked) == 1:
            raise Unavailable(what="the runtime", detail="it is not there yet")
        return []

    async def fingerprints(_: str) -> dict[str, str]:
        return dict(held)

    control.fingerprints = fingerprints  # type: ignore[attr-defined]
    ctx: Any = SimpleNamespace(
        control=control, clock=clock, store=store, queue=queue, view=ControlView(), namespaces=["ns"], settings=None
    )
    ctx.client, ctx.followers = SimpleNamespace(list=programs), SimpleNamespace(programs=set())
    poll = ControlPoll(ctx)
    await poll.once()
    assert queue.idle, "nothing was seen yet, so nothing is missing"
    store.inferlets[Key("Inferlet", "ns", "kept")] = InferletSeen("1", "", "", "", ready=True, runnable=False)
    clock.advance(5.0)
    await poll.once()
    assert queue.idle
    clock.advance(6.0)
    await poll.once()
    assert list(queue._pending) == [Key("Inferlet", "ns", "deleted while nobody looked")]
    queue._pending.clear()
    clock.advance(11.0)
    await poll.once()
    assert asked == ["ns", "ns"], "who didn't answer is asked again"
    queue._pending.clear()
    clock.advance(3600.0)
    await poll.once()
    assert asked == ["ns", "ns"]
