"""Objects that failed too often are retried: one now and then, and all of them when it succeeds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tartlet_common.clock import ManualClock
from tartlet_common.errors.registry import Unavailable
from tartlet_operator.api.meta import Key
from tartlet_operator.cluster.kube import ApiError
from tartlet_operator.machinery import handler
from tartlet_operator.machinery.context import Context, ControlView
from tartlet_operator.machinery.handler import Handler, Kind
from tartlet_operator.machinery.own_writes import OwnWrites
from tartlet_operator.machinery.store import InferletSeen, Store
from tartlet_operator.machinery.work_queue import LATER, WorkQueue
from tests.operator.objects import body, until


async def gone(*_: Any) -> None:
    """Nothing is deleted here."""


KEYS = [Key("Inferlet", "ns", name) for name in "abcd"]


async def test_what_was_given_up_is_taken_up_when_one_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    away = True

    async def reconcile(_: Any, key: Key, __: Mapping[str, Any]) -> None:
        tried.append(key.name)
        if away or key.name == "d":
            raise Unavailable(what="the runtime", detail="it was stopped")

    async def write_status(_: Key, __: Any, ___: Any, new: Any, ____: Any) -> None:
        assert "see whether its pods run" in new.conditions[0].message

    async def get(kind: str, _: str, name: str) -> Any:
        return body(kind, name, {"source": {"inline": "pass"}}, {})

    monkeypatch.setattr(handler, "_PROBE_S", 0.02)
    queue = WorkQueue()
    metrics = SimpleNamespace(reconciled=lambda *_: None, failed=lambda *_: None)
    ctx: Any = SimpleNamespace(clock=ManualClock(), queue=queue, own_writes=OwnWrites(), metrics=metrics, now="now")
    ctx.view = ControlView()
    ctx.given_up, ctx.try_again, ctx.store = {}, partial(Context.try_again, ctx), Store()
    ctx.store.inferlets[KEYS[0]] = InferletSeen("", "", "", "", ready=True, runnable=True)
    ctx.settings, ctx.write_status, ctx.api = SimpleNamespace(max_retries=0), write_status, SimpleNamespace(get=get)
    worker = asyncio.ensure_future(queue.work("Inferlet", Handler(ctx, {"Inferlet": Kind(reconcile, gone)}).handle))
    for key in KEYS:
        queue.add(key)
    await until(lambda: len(tried) >= 12)
    assert tried[:4] == list("abcd")
    assert tried[4:8] == list("abcd"), "one after another"
    assert ctx.store.inventory() == {("Inferlet", "not_ready"): 1}, "nobody knows whether it is ready"
    tried.clear()
    away = False
    await until(lambda: {"a", "b", "c"} <= set(tried))
    await asyncio.sleep(0.1)
    assert sum(name != "d" for name in tried) == 3, "what succeeded is done"
    assert tried.count("d") > 2, "what fails is tried on"
    worker.cancel()
    queue.close()


async def test_a_new_object_says_at_once_that_control_is_away() -> None:
    written: list[tuple[str, int]] = []

    async def reconcile(_: Any, __: Key, ___: Mapping[str, Any]) -> None:
        raise Unavailable(what="control", detail="it was stopped")

    async def write_status(_: Key, __: Any, ___: Any, new: Any, events: list[Any]) -> None:
        written.append((new.conditions[0].reason, len(events)))

    metrics = SimpleNamespace(reconciled=lambda *_: None, failed=lambda *_: None)
    ctx: Any = SimpleNamespace(clock=ManualClock(), own_writes=OwnWrites(), metrics=metrics, store=Store(), now="now")
    ctx.settings, ctx.write_status, ctx.view = SimpleNamespace(max_retries=3), write_status, ControlView(silent=True)
    given = body("Inferlet", "a", {"source": {"inline": "pass"}}, {})
    tried = Handler(ctx, {"Inferlet": Kind(reconcile, gone)})
    assert await tried.handle(KEYS[0], given) == handler.retry_s(1, 3), "it is tried again"
    assert written == [("ControlUnreachable", 0)]
    ctx.view.silent = False
    await tried.handle(KEYS[0], given)
    assert len(written) == 1, "one failure is no news while control answers"


@pytest.mark.parametrize("status", [401, 403])
async def test_missing_rights_are_retried(status: int) -> None:
    async def reconcile(_: Any, __: Key, ___: Mapping[str, Any]) -> None:
        raise ApiError(status, "Forbidden", "not now")

    async def get(kind: str, _: str, name: str) -> Any:
        return body(kind, name, {"source": {"inline": "pass"}}, {})

    metrics = SimpleNamespace(reconciled=lambda *_: None, failed=lambda *_: None)
    ctx: Any = SimpleNamespace(
        clock=ManualClock(), own_writes=OwnWrites(), metrics=metrics, api=SimpleNamespace(get=get)
    )
    ctx.settings = SimpleNamespace(max_retries=3)
    assert await Handler(ctx, {"Inferlet": Kind(reconcile, gone)}).handle(KEYS[0], None) == handler.retry_s(1, 3)


async def test_what_is_still_fetched_has_not_succeeded() -> None:
    """The download succeeds, and control refuses the entry; the pause before the next attempt still grows."""
    answers = [Unavailable(what="control", detail="it is full"), None] * 3

    async def reconcile(_: Any, __: Key, ___: Mapping[str, Any]) -> float:
        if (refused := answers.pop(0)) is not None:
            raise refused
        return LATER

    async def get(kind: str, _: str, name: str) -> Any:
        return body(kind, name, {"source": {"inline": "pass"}}, {})

    metrics = SimpleNamespace(reconciled=lambda *_: None, failed=lambda *_: None)
    ctx: Any = SimpleNamespace(
        clock=ManualClock(), own_writes=OwnWrites(), metrics=metrics, api=SimpleNamespace(get=get)
    )
    ctx.settings, ctx.given_up, ctx.view = SimpleNamespace(max_retries=5), {}, ControlView()
    tried = Handler(ctx, {"Inferlet": Kind(reconcile, gone)})
    assert [await tried.handle(KEYS[0], None) for _ in range(6)] == [0.5, LATER, 1.0, LATER, 2.0, LATER]
