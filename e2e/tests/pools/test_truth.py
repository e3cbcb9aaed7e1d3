"""Statuses of pools and runs say what is so while engines, runtimes and control go away and come back."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from e2e.cluster.kube import Kube, Object, condition, step, until
from e2e.tests.conftest import pool
from e2e.tests.programs.test_answers import run
from e2e.tests.support.story import SLOW, TERMINAL, inferlet

POOL = "truth"
PIECES_A_SECOND = 5
"""How many tokens SLOW generates each second."""

SOON_S = 5.0
"""How soon a status tells that a runtime has gone, in seconds."""


@pytest.fixture(scope="module", autouse=True)
def slow(kube: Kube) -> Iterator[None]:
    """Makes a pool and a program that runs on it for a given time."""
    kube.apply(pool(POOL), inferlet("truth-slow", POOL, {"inline": SLOW}))
    kube.wait(f"epool/{POOL}", "Ready")
    kube.wait("ilet/truth-slow", "Runnable")
    yield
    kube("delete", f"epool/{POOL}", "--timeout=60s")


def launched(kube: Kube, name: str, seconds: int) -> None:
    """Launches a run of so many seconds and waits until its status counts tokens."""
    kube.apply(run(name, "truth-slow", args=[str(seconds)], deadlineSeconds=120))
    until(lambda: kube.get(f"irun/{name}").get("status", {}).get("tokens", {}).get("output", 0) > 0, "tokens count")
    assert kube.get(f"irun/{name}")["status"]["phase"] == "Running"


def followed(kube: Kube, name: str) -> list[Object]:
    """Returns a run's statuses, from now to its end."""
    seen: list[Object] = []

    def ended() -> bool:
        seen.append(kube.get(f"irun/{name}").get("status", {}))
        return seen[-1].get("phase") in TERMINAL

    until(ended, f"{name} ends", 90)
    return seen


def told(kube: Kube, pool_name: str) -> dict[str, tuple[str, str]]:
    """Returns status and reason of each condition of a pool."""
    conditions = kube.get(f"epool/{pool_name}").get("status", {}).get("conditions", [])
    return {c["type"]: (c["status"], c["reason"]) for c in conditions}


def launched_again(seen: list[Object], seconds: int, losses: int = 1) -> None:
    """Asserts that a run without retries succeeded after so many losses, and that its tokens never fell."""
    last = seen[-1]
    ended = (last["phase"], last["result"], last["attempts"], last["losses"])
    assert ended == ("Succeeded", "to the end", 1 + losses, losses), last
    counts = [each["tokens"]["output"] for each in seen]
    assert counts == sorted(counts)
    computed = seconds * PIECES_A_SECOND
    assert counts[-1] > computed if losses else counts[-1] == computed  # those of the lost attempt count too


def test_a_pool_without_engines_is_ready_until_runs_wait_for_it(kube: Kube) -> None:
    kube.apply(pool("truth-zero", replicas=0), inferlet("truth-wants", "truth-zero", {"inline": SLOW}))
    until(lambda: told(kube, "truth-zero").get("Ready") == ("True", "ScaledToZero"), "it is as its spec asks")
    assert told(kube, "truth-zero")["Available"] == ("False", "ScaledToZero")
    kube.wait("ilet/truth-wants", "Ready")
    kube.apply(run("truth-waits", "truth-wants", args=["1"], deadlineSeconds=120))
    with step("runs wait, and the pool says so"):
        until(lambda: told(kube, "truth-zero")["Ready"] == ("False", "ScaledToZero"), "runs wait for it", 30)
    assert "runs wait" in condition(kube.get("epool/truth-zero"), "Ready")["message"]
    waits = condition(kube.get("irun/truth-waits"), "Running")
    assert waits["reason"] == "InferletNotRunnable"
    assert "truth-zero" in waits["message"]
    kube("scale", "epool/truth-zero", "--replicas=1")
    kube.wait("irun/truth-waits", "Succeeded")
    kube.wait("epool/truth-zero", "Available")
    kube("delete", "epool/truth-zero", "--timeout=60s")


def test_a_stuck_rollout_leaves_the_pool_available(kube: Kube) -> None:
    kube("patch", f"epool/{POOL}", "--type=merge", "-p", '{"spec": {"image": "Not An Image"}}')
    with step("rollout stuck"):
        until(lambda: told(kube, POOL)["Progressing"] == ("False", "RolloutStuck"), "the rollout is stuck")
    found = told(kube, POOL)
    assert found["Available"] == ("True", "EnginesReady")
    assert found["Ready"] == ("False", "InvalidImageName")
    kube.apply(run("truth-beside", "truth-slow", args=["1"], deadlineSeconds=60))
    kube.wait("irun/truth-beside", "Succeeded")
    kube("patch", f"epool/{POOL}", "--type=merge", "-p", '{"spec": {"image": null}}')
    kube.wait(f"epool/{POOL}", "Ready")
    assert told(kube, POOL)["Progressing"] == ("False", "Settled")


def test_a_run_goes_on_at_the_next_engine_when_its_own_is_lost(kube: Kube) -> None:
    launched(kube, "truth-engine", 6)
    kube("delete", "pod", "-l", f"tartlet.dev/pool={POOL}", "--grace-period=0", "--force")
    with step("went on"):
        launched_again(followed(kube, "truth-engine"), 6, losses=0)
    kube.wait(f"epool/{POOL}", "Ready")


def test_a_run_says_soon_that_its_runtime_has_gone(kube: Kube) -> None:
    launched(kube, "truth-runtime", 6)
    start = time.monotonic()
    kube("delete", "pod", "-l", "app.kubernetes.io/component=runtime", "--grace-period=0", "--force")
    until(lambda: kube.get("irun/truth-runtime")["status"]["phase"] != "Running", "it is no longer Running", 30)
    took_s = time.monotonic() - start
    with step(f"no longer Running after {took_s:.1f} s; launched again"):
        launched_again(followed(kube, "truth-runtime"), 6)
    assert took_s <= SOON_S
    kube("rollout", "status", "deploy/tartlet-runtime", "--timeout=60s")


def test_pools_and_runs_say_that_control_is_away(kube: Kube) -> None:
    kube("scale", "deploy/tartlet-control", "--replicas=0")
    try:
        kube.apply(run("truth-control", "truth-slow", args=["1"], deadlineSeconds=120))
        with step("control away, told"):
            until(lambda: told(kube, POOL)["Available"] == ("Unknown", "ControlUnreachable"), "the pool says it", 30)
            until(lambda: _why(kube, "truth-control") == "ControlUnreachable", "the run says it", 30)
        assert told(kube, POOL)["Ready"] == ("Unknown", "ControlUnreachable")
        assert "control" in condition(kube.get("irun/truth-control"), "Running")["message"]
    finally:
        kube("scale", "deploy/tartlet-control", "--replicas=1")
        kube("rollout", "status", "deploy/tartlet-control", "--timeout=60s")
    kube.wait("irun/truth-control", "Succeeded")
    kube.wait(f"epool/{POOL}", "Ready")


def _why(kube: Kube, name: str) -> str:
    return str(condition(kube.get(f"irun/{name}"), "Running").get("reason"))


def test_a_deleted_pool_is_seen_until_its_engine_has_drained(kube: Kube) -> None:
    kube.apply(pool("truth-goes"), inferlet("truth-stays", "truth-goes", {"inline": SLOW}))
    kube.wait("ilet/truth-stays", "Runnable")
    kube.apply(run("truth-last", "truth-stays", args=["18"], deadlineSeconds=120, lossRetries=0))
    until(lambda: bool(kube.get("epool/truth-goes")["metadata"].get("finalizers")), "its programs are known", 30)
    kube("delete", "epool/truth-goes", "--wait=false")
    until(lambda: told(kube, "truth-goes")["Ready"] == ("False", "Draining"), "it drains")
    assert "programs left: 1 on 1 engines" in condition(kube.get("epool/truth-goes"), "Ready")["message"]
    with step("drained"):
        kube("wait", "epool/truth-goes", "--for=delete", "--timeout=40s")
    assert not [p for p in kube.items("pods", "-l", "tartlet.dev/pool=truth-goes") if p["status"]["phase"] == "Running"]
