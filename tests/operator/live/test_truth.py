"""Statuses while something is away: a runtime, control, engines, or a pool that was deleted."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from e2e.tests.support.story import SLOW
from tests.operator.api_server import ApiServer
from tests.operator.live.test_pools import FAKE, add_pod, rolled_out, runs, serving, set_pod
from tests.operator.operator_process import ENGINE, Live, live

AWAY_S = 6.0
"""How long a role that was killed stays away."""


@pytest.fixture(autouse=True)
def slow_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the stack restart a role that died later than it would by itself."""
    monkeypatch.setattr("tartlet.local._BACKOFF_S", (AWAY_S,))


def status(it: Live, run: str) -> dict[str, Any]:
    found: dict[str, Any] = it.get("InferletRun", run).get("status", {})
    return found


async def computing(it: Live, run: str) -> None:
    """Create a run that samples a few tokens a second, and wait until its status shows some of them."""
    it.create("Inferlet", "slow", {"source": {"inline": SLOW}, "args": ["600"]})
    it.create("InferletRun", run, {"inferlet": "slow"})
    await it.until(lambda: status(it, run).get("tokens", {}).get("output", 0) > 0)
    assert status(it, run)["phase"] == "Running"


async def test_a_run_shows_tokens_then_its_lost_runtime_and_then_goes_on(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    async with live(api_server, namespace, run_dir) as it:
        await computing(it, "r")
        first = status(it, "r")["tokens"]["output"]
        await it.until(lambda: status(it, "r")["tokens"]["output"] > first)
        versions = set()
        for _ in range(40):
            versions.add(it.get("InferletRun", "r")["metadata"]["resourceVersion"])
            await asyncio.sleep(0.1)
        assert len(versions) <= 4, "a run's status is written every 2 s at most"
        os.kill(it.stack._children["runtime"].pid, signal.SIGKILL)
        took_s = await it.until(lambda: status(it, "r")["phase"] == "Unknown", 5)
        assert took_s < 2.5
        assert it.condition("InferletRun", "r", "Running")["reason"] == "RuntimeUnreachable"
        await it.until_condition("InferletRun", "r", "Running", timeout_s=60)  # at the restarted runtime
        last = status(it, "r")["tokens"]["output"]
        await it.until(lambda: status(it, "r")["tokens"]["output"] > max(first, last), 60)
        after = status(it, "r")
        assert (after["attempts"], after.get("losses", 0)) == (1, 0)


async def test_while_control_is_away_runs_and_pools_say_so(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    async with live(api_server, namespace, run_dir, engine_flags=(f"--pool={namespace}/pool",)) as it:
        await serving(it)
        set_pod(it, ENGINE, containerStatuses=[container(started=True)])
        it.create("Inferlet", "i", {"source": {"inline": "async def main():\n    return 'done'\n"}, "pool": "pool"})
        await it.until_condition("Inferlet", "i", "Runnable")
        os.kill(it.stack._children["control"].pid, signal.SIGKILL)
        await asyncio.sleep(0.5)
        runs(it, ENGINE, ready=False)  # its engine has lost control
        it.create("InferletRun", "r", {"inferlet": "i"})
        it.create("Inferlet", "new", {"source": {"inline": "async def main():\n    pass\n"}})
        new = await it.until_condition("Inferlet", "new", "Ready", "Unknown", "ControlUnreachable", timeout_s=3)
        assert "control doesn't answer" in new["message"]
        waits = await it.until_condition("InferletRun", "r", "Running", "False", "ControlUnreachable", timeout_s=3)
        assert "control" in waits["message"]
        for kind in ("Ready", "Available"):
            told = await it.until_condition("EnginePool", "pool", kind, "Unknown", "ControlUnreachable", timeout_s=3)
            assert "Loading" not in told["message"]
        assert it.get("EnginePool", "pool")["status"]["engines"][0]["state"] == "Unknown"
        await it.until_condition("Inferlet", "i", "Runnable", "Unknown", "ControlUnreachable")
        runs(it, ENGINE, ready=True)
        await it.until_condition("EnginePool", "pool", "Ready", timeout_s=30)
        await it.until_condition("InferletRun", "r", "Succeeded")
        await it.until_condition("Inferlet", "new", "Ready")
        assert "ReconcileFailed" not in it.events("new")


async def test_a_pool_of_no_engines_is_not_available_nor_ready_for_runs_that_wait(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    async with live(api_server, namespace, run_dir) as it:
        it.create("EnginePool", "pool", {**FAKE, "replicas": 0})
        await it.until(lambda: "observedGeneration" in it.get("EnginePool", "pool").get("status", {}))
        rolled_out(it, 0)
        await it.until_condition("EnginePool", "pool", "Ready", "True", "ScaledToZero")
        await it.until_condition("EnginePool", "pool", "Available", "False", "ScaledToZero")
        it.create("Inferlet", "i", {"source": {"inline": "async def main():\n    pass\n"}, "pool": "pool"})
        it.create("InferletRun", "r", {"inferlet": "i"})
        await it.until_condition("InferletRun", "r", "Running", "False", "InferletNotRunnable")
        waits = await it.until_condition("EnginePool", "pool", "Ready", "False", "ScaledToZero", timeout_s=2)
        assert "runs wait" in waits["message"]
        it.delete("InferletRun", "r")
        await it.until_condition("EnginePool", "pool", "Ready", "True", "ScaledToZero", timeout_s=2)


async def test_a_run_that_is_applied_with_its_pool_waits_for_the_pools_engine(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    async with live(api_server, namespace, run_dir, engine_flags=(f"--pool={namespace}/pool",)) as it:
        it.create("Inferlet", "i", {"source": {"inline": "async def main():\n    return 'done'\n"}})
        await it.until_condition("Inferlet", "i", "Runnable", reason="ModelNotNamed")
        it.create("EnginePool", "pool", FAKE)
        await it.until_condition("EnginePool", "pool", "Ready", "False", "RollingOut")
        it.create("InferletRun", "r", {"inferlet": "i"})
        await it.until_condition("InferletRun", "r", "Running", "False", "InferletNotRunnable")
        assert status(it, "r").get("attempts", 0) == 0
        rolled_out(it, 1)
        add_pod(it, ENGINE)
        runs(it, ENGINE, ready=True)
        await it.until_condition("InferletRun", "r", "Succeeded")
        assert status(it, "r")["attempts"] == 1


async def test_a_deleted_pool_with_programs_stays_and_tells_what_drains(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    async with live(api_server, namespace, run_dir, engine_flags=(f"--pool={namespace}/pool",)) as it:
        await serving(it)
        assert "finalizers" not in it.get("EnginePool", "pool")["metadata"]
        await computing(it, "r")
        await it.until(lambda: it.get("EnginePool", "pool")["metadata"].get("finalizers") == ["tartlet.dev/drain"])
        it.delete("EnginePool", "pool")
        await it.until(lambda: it.get("EnginePool", "pool")["metadata"]["finalizers"] == ["foregroundDeletion"], 3)
        it.operator.kill()  # from now on the cluster's garbage collector alone keeps it
        it.operator.start()
        draining = await it.until_condition("EnginePool", "pool", "Ready", "False", "Draining")
        assert "programs left: 1 on 1 engines" in draining["message"]


def container(*, started: bool) -> dict[str, Any]:
    return {"name": "worker", "image": "i", "imageID": "", "ready": True, "restartCount": 0, "started": started}
