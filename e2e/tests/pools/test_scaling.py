"""The operator scales a pool on a cluster: to zero while nothing runs, and back for runs that wait."""

from __future__ import annotations

from e2e.cluster.kube import Kube, until
from e2e.tests.conftest import pool
from e2e.tests.pools.test_truth import told
from e2e.tests.programs.test_answers import run
from e2e.tests.support.story import SLOW, inferlet

POOL = "scaled"


def test_a_pool_goes_to_zero_and_comes_back_for_runs_that_wait(kube: Kube) -> None:
    def asked() -> int:
        replicas: int = kube.get(f"epool/{POOL}")["spec"]["replicas"]
        return replicas

    scaling = {"minReplicas": 0, "maxReplicas": 2, "scaleDownSeconds": 3}
    kube.apply(pool(POOL, replicas=0, autoscaling=scaling), inferlet("scaled-slow", POOL, {"inline": SLOW}))
    until(lambda: told(kube, POOL).get("Available") == ("False", "ScaledToZero"), "nothing runs on the pool")
    kube.wait("ilet/scaled-slow", "Ready")
    for name in ("scaled-first", "scaled-second"):
        kube.apply(run(name, "scaled-slow", args=["5"], deadlineSeconds=180))
        until(lambda: asked() == 1, "an engine comes for the run", 30)
        kube.wait(f"irun/{name}", "Succeeded", timeout_s=120)
        assert kube.get(f"irun/{name}")["status"]["attempts"] == 1
        until(lambda: asked() == 0, "the engine goes", 30)
        until(lambda: kube.get(f"epool/{POOL}")["status"]["replicas"] == 0, "its pod goes", 60)
    assert told(kube, POOL)["Ready"] == ("True", "ScaledToZero")
    kube("delete", f"epool/{POOL}", "--timeout=60s")
