"""When control's reports, resyncs and sweeps queue objects."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tartlet_common.clock import ManualClock
from tartlet_common.errors.registry import Unavailable
from tartlet_operator.api.meta import Key
from tartlet_operator.inferlets.catalogue_sync import compare_catalogue, queue_entries_without_inferlet
from tartlet_operator.machinery import resync
from tartlet_operator.machinery.context import Context, ControlView
from tartlet_operator.machinery.control_watch import UNREACHABLE_S, ControlWatch
from tartlet_operator.machinery.resync import Resync, sweep_when_settled
from tartlet_operator.machinery.store import InferletSeen, PoolSeen, RunSeen, Store
from tartlet_operator.machinery.work_queue import WorkQueue
from tartlet_operator.runs import orphans
from tartlet_protos import control_pb2


class Control:
    """A control that reports what the test sets."""

    def __init__(self) -> None:
        self.engine = control_pb2.EngineSeen(id="p-0", state="ready")
        self.watched = 0
        self.gone = False
        self.news = asyncio.Event()

    async def engines(self, every_s: float) -> AsyncGenerator[control_pb2.EnginesReply]:
        self.watched += 1
        while not self.gone:
            yield control_pb2.EnginesReply(incarnation="one", engines=[self.engine])
            self.news.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.news.wait(), every_s)
        raise Unavailable(what="control", detail="it has gone")


def context(control: Control, **parts: Any) -> Any:
    beside: dict[str, Any] = {
        "clock": ManualClock(),
        "store": Store(),
        "queue": WorkQueue(),
        "view": ControlView(),
        "namespaces": [],
        "settings": SimpleNamespace(heartbeat_s=0.02),
        "given_up": {},
    }
    made = SimpleNamespace(control=control, **{**beside, **parts})
    made.try_again = partial(Context.try_again, made)  # type: ignore[arg-type]
    return made


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not check():  # noqa: ASYNC110 - the operator has no event for a test's sake
            await asyncio.sleep(0.01)


async def test_pools_are_queued_when_control_reports_a_change() -> None:
    control = Control()
    ctx = context(control)
    ctx.store.pools[Key("EnginePool", "ns", "p")] = PoolSeen("p", "m", ready=True)
    watch = ControlWatch(ctx, compare_catalogue)

    async def looked_at() -> bool:
        await watch.once()
        told = bool(ctx.queue._pending)
        ctx.queue._pending.clear()
        return told

    assert await looked_at()
    assert not await looked_at()
    control.engine.programs = 3
    assert await looked_at()
    assert ctx.view.programs == {"p-0": 3}
    control.engine.state = "draining"
    assert await looked_at()
    ctx.clock.advance(3600.0)
    assert not await looked_at(), "nothing has changed"


async def test_who_hears_of_a_change_looks_at_once_and_who_hears_nothing_says_so_after_a_while() -> None:
    control = Control()
    ctx = context(control, settings=SimpleNamespace(heartbeat_s=60.0))
    pool, waits, runs = Key("EnginePool", "ns", "p"), Key("InferletRun", "ns", "w"), Key("InferletRun", "ns", "r")
    ctx.store.pools[pool] = PoolSeen("p", "m", ready=True)
    for key, phase in ((waits, "Pending"), (runs, "Pending"), (runs, "Running")):
        ctx.store.saw_run(key, RunSeen("i", phase))
    running = asyncio.ensure_future(ControlWatch(ctx, compare_catalogue).run())

    async def looked_at(*others: Key) -> None:
        await until(lambda: pool in ctx.queue._pending)
        assert set(ctx.queue._pending) == {pool, *others}
        ctx.queue._pending.clear()

    try:
        await looked_at(waits)
        control.engine.programs = 1
        control.news.set()
        await looked_at()  # no engine is another than it was
        control.engine.state, control.engine.programs = "cordoned", 3
        control.news.set()
        await looked_at(waits)
        assert ctx.view.engines == {"p-0": "cordoned"}
        control.gone = True
        control.news.set()
        await until(lambda: control.watched >= 3)  # asked again and again
        assert ctx.view.engines == {"p-0": "cordoned"}, "it may only have been started anew"
        ctx.clock.advance(UNREACHABLE_S + 1.0)
        await looked_at(waits)
        assert not ctx.view.engines, "nobody knows"
        assert ctx.view.programs == {"p-0": 3}, "as control told last"
        tried = Key("Inferlet", "ns", "tried too often")
        ctx.given_up[tried] = None
        control.gone = False
        await until(lambda: tried in ctx.queue._pending)
        del ctx.queue._pending[tried]
        await looked_at(waits)
        assert ctx.view.engines == {"p-0": "cordoned"}
        assert not ctx.given_up, "what it stood in the way of is looked at"
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_catalogue_is_swept_once_all_inferlets_have_been_seen() -> None:
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
    ctx = context(control, namespaces=["ns"])
    ctx.client, ctx.followers = SimpleNamespace(list=programs), SimpleNamespace(programs=set())
    settled = asyncio.ensure_future(sweep_when_settled(ctx, [queue_entries_without_inferlet, orphans.end], 0.02))

    kept, gone = Key("Inferlet", "ns", "kept"), Key("Inferlet", "ns", "deleted while nobody looked")
    await asyncio.sleep(0.1)
    assert not asked, "control was not heard yet"
    ctx.queue.add(kept)
    await ControlWatch(ctx, compare_catalogue).once()
    await asyncio.sleep(0.1)
    assert not asked, "not all that is there has been seen"
    ctx.store.inferlets[kept] = InferletSeen("1", "", "", "", ready=True, runnable=False)
    ctx.queue._pending.clear()
    await until(lambda: gone in ctx.queue._pending)
    ctx.queue._pending.clear()
    await until(settled.done)
    await settled
    assert asked == ["ns", "ns"], "who didn't answer is asked again"


async def test_an_inferlet_whose_last_valid_version_control_lost_is_queued() -> None:
    control = Control()
    held = {"edited": "1"}

    async def fingerprints(_: str) -> dict[str, str]:
        return dict(held)

    control.fingerprints = fingerprints  # type: ignore[attr-defined]
    ctx = context(control, namespaces=["ns"])
    edited = Key("Inferlet", "ns", "edited")
    await compare_catalogue(ctx)
    ctx.store.inferlets[edited] = InferletSeen("", "", "", "", ready=False, runnable=True)
    held.clear()
    await compare_catalogue(ctx)
    assert list(ctx.queue._pending) == [edited]


async def test_a_resync_ends_even_if_workers_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    async def pages(kind: str, namespace: str) -> AsyncIterator[dict[str, Any]]:
        for n in range(400):
            yield {"metadata": {"namespace": namespace, "name": f"{kind}-{n}"}}

    async def done(_: Any) -> None:
        raise Unavailable(what="control", detail="the objects are looked at all the same")

    monkeypatch.setattr(resync, "_ROOM_S", 0.01)
    ctx = context(Control(), namespaces=["ns"], api=SimpleNamespace(pages=pages))
    lost = Key("Inferlet", "ns", "deleted while nobody looked")
    ctx.store.inferlets[lost] = InferletSeen("", "", "", "", ready=True, runnable=True)
    async with asyncio.timeout(10):
        await Resync(ctx, [done]).once()
    pending = ctx.queue._pending
    assert len(pending) == 1201
    assert lost in pending
    assert sum(body is not None for body in pending.values()) == 600, "keys alone take no memory"
