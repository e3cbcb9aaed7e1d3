"""The operator scales a pool: to zero while nothing runs, and back for runs that wait."""

from __future__ import annotations

import pytest

from e2e.cluster.kube import Kube, step, until
from e2e.tests.conftest import pool
from e2e.tests.pools.test_truth import told
from e2e.tests.programs.test_answers import run
from e2e.tests.support.story import SLOW, TERMINAL, inferlet, of, phases

POOL = "scaled"


def asked(kube: Kube) -> int:
    """Returns how many engines the pool's spec asks for."""
    replicas: int = kube.get(f"epool/{POOL}")["spec"]["replicas"]
    return replicas


def wave(kube: Kube, prefix: str, count: int) -> None:
    """Launches runs that wait for the pool without engines, and waits until they and the engines have gone."""
    kube.apply(
        *(run(f"{prefix}{n}", "scaled-slow", args=["3"], deadlineSeconds=180, lossRetries=0) for n in range(count))
    )
    with step(f"an engine comes for {count} runs"):
        until(lambda: asked(kube) > 0, "engines are asked for", 30)
    with step("they end"):
        until(lambda: set(phases(kube, prefix)) <= TERMINAL, "the runs end", 120)
    states = [r["status"] for r in of(kube, "irun", prefix)]
    assert [(s["phase"], s["result"], s["attempts"]) for s in states] == [("Succeeded", "to the end", 1)] * count
    with step("the engine goes"):
        until(lambda: asked(kube) == 0, "none is asked for", 30)
        until(lambda: kube.get(f"epool/{POOL}")["status"]["replicas"] == 0, "its pod goes", 60)


@pytest.mark.timeout(400)
def test_a_pool_goes_to_zero_and_comes_back_for_runs_that_wait(kube: Kube) -> None:
    scaling = {"minReplicas": 0, "maxReplicas": 2, "scaleDownSeconds": 3}
    kube.apply(pool(POOL, replicas=0, autoscaling=scaling), inferlet("scaled-slow", POOL, {"inline": SLOW}))
    until(lambda: told(kube, POOL).get("Available") == ("False", "ScaledToZero"), "nothing runs on the pool")
    kube.wait("ilet/scaled-slow", "Ready")
    wave(kube, "scaled-first-", 1)
    wave(kube, "scaled-second-", 3)
    until(lambda: told(kube, POOL)["Ready"] == ("True", "ScaledToZero"), "it is as its spec asks")
    kube("delete", f"epool/{POOL}", "--timeout=60s")
