"""Ended runs go after their time, a bounded number at once, and none of them has a timer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tartlet_operator.api.inferlet_run import InferletRunStatus
from tartlet_operator.api.meta import Key
from tartlet_operator.api.times import stamp
from tartlet_operator.machinery.store import RunSeen, Store
from tartlet_operator.machinery.work_queue import WorkQueue
from tartlet_operator.runs import decisions, expiry
from tests.operator.objects import run, until

WEEK_S = 604_800
ENDED_S = 1_800_000_000.0
ENDED = InferletRunStatus(phase="Succeeded", completion_time=stamp(ENDED_S))


@pytest.mark.parametrize(
    ("own_s", "default_s", "after_s", "then"),
    [
        (None, WEEK_S, 0, decisions.Rest(None)),
        (None, WEEK_S, WEEK_S - 30, decisions.Rest(30.0)),
        (None, WEEK_S, WEEK_S, decisions.Delete()),
        (None, -1, 10 * WEEK_S, decisions.Rest(None)),
        (0, -1, 0, decisions.Delete()),
        (0, WEEK_S, 0, decisions.Delete()),
        (2 * WEEK_S, WEEK_S, WEEK_S, decisions.Rest(None)),
    ],
)
def test_a_run_stays_for_its_own_time_else_for_the_operators(
    own_s: int | None, default_s: int, after_s: int, then: decisions.Action
) -> None:
    spec = run(**({} if own_s is None else {"ttlSecondsAfterFinished": own_s})).spec
    assert decisions.after_end(spec, ENDED, ENDED_S + after_s, default_s) == then


async def test_ten_thousand_runs_whose_time_is_over_are_deleted_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    store, queue = Store(), WorkQueue()
    for n in range(10_000):
        store.saw_run(Key("InferletRun", "ns", f"r{n:05}"), RunSeen("i", "Succeeded", 1.0 + n))
    store.saw_run(Key("InferletRun", "ns", "forever"), RunSeen("i", "Succeeded"))
    monkeypatch.setattr(expiry, "SWEEP_S", 0.01)
    ctx: Any = SimpleNamespace(store=store, queue=queue, unix_s=9_990.0)
    sweeping = asyncio.create_task(expiry.sweep(ctx))
    await until(lambda: len(queue))
    assert len(queue) == expiry.BATCH
    assert expiry.due(store, 9_990.0)[:2] == [Key("InferletRun", "ns", "r00000"), Key("InferletRun", "ns", "r00001")]
    for n in range(9_989):
        store.forget(Key("InferletRun", "ns", f"r{n:05}"))
    assert expiry.due(store, 9_990.0) == [Key("InferletRun", "ns", "r09989")]
    assert not queue._timers
    sweeping.cancel()
