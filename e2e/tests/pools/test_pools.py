"""Engines come and go; running programs notice nothing, or get an error that says what happened."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from e2e.cluster.kube import Kube, Object, condition, step, until
from e2e.cluster.provider import Own
from e2e.cluster.watch import honest
from e2e.tests.conftest import pool
from e2e.tests.programs.test_answers import run
from e2e.tests.support.operators import container
from e2e.tests.support.story import SLOW, TERMINAL, inferlet, of, phases

HONEST_S = 2.0
"""How long a pool's status may lag, in seconds."""

POOL = "waves"

TYPED = {"WorkerLost", "RuntimeLost", "Draining", "ControlLost", "Unavailable"}
"""Errors in which a program may end when it loses its engine."""


@pytest.fixture(scope="module", autouse=True)
def slow(kube: Kube) -> Iterator[None]:
    """Makes a pool and a program that runs for a given time."""
    kube.apply(pool(POOL), inferlet("slow", POOL, {"inline": SLOW}))
    kube.wait(f"epool/{POOL}", "Ready")
    kube.wait("ilet/slow", "Ready")
    yield
    kube("delete", f"epool/{POOL}", "--timeout=60s")


def start(kube: Kube, prefix: str, count: int, seconds: float, program: str = "slow") -> list[str]:
    """Launches runs that a loss of their engine ends, and waits until they run."""
    names = [f"{prefix}-{n}" for n in range(count)]
    kube.apply(*(run(name, program, args=[str(seconds)], deadlineSeconds=120, lossRetries=0) for name in names))
    until(lambda: phases(kube, f"{prefix}-").count("Running") == count, f"{count} runs of {prefix} run")
    return names


def ended(kube: Kube, prefix: str, timeout_s: float = 90) -> list[Object]:
    """Returns the states of the runs after all have ended."""
    until(lambda: set(phases(kube, f"{prefix}-")) <= TERMINAL, f"all runs of {prefix} end", timeout_s)
    return [r["status"] for r in of(kube, "irun", f"{prefix}-")]


def workers(kube: Kube, pool_name: str = POOL) -> list[Object]:
    """The pool's pods."""
    return kube.items("pods", "-l", f"tartlet.dev/pool={pool_name}")


def all_succeeded(states: list[Object], count: int) -> None:
    """Asserts that no run failed and none had to be launched again."""
    assert [s["phase"] for s in states] == ["Succeeded"] * count, json.dumps(states, indent=1)
    assert {(s["result"], s["attempts"]) for s in states} == {("to the end", 1)}


def test_scaling_up_and_down_fails_no_program(kube: Kube) -> None:
    start(kube, "scale", 6, 8)
    with step("1 -> 2"), honest(kube, POOL, HONEST_S):
        kube("scale", f"epool/{POOL}", "--replicas=2")
        until(lambda: kube.get(f"epool/{POOL}")["status"].get("readyReplicas") == 2, "two engines are ready")
        kube.wait(f"epool/{POOL}", "Ready")
    start(kube, "both", 6, 5)
    with step("2 -> 1"), honest(kube, POOL, HONEST_S):
        kube("scale", f"epool/{POOL}", "--replicas=1")
        until(lambda: len(workers(kube)) == 1, "one pod is left")
        kube.wait(f"epool/{POOL}", "Ready")
    with step("programs end"):
        all_succeeded([*ended(kube, "scale"), *ended(kube, "both")], 12)
    told = {e["reason"] for e in kube.items("events") if e["involvedObject"]["name"] == POOL}
    assert {"EngineDraining", "EngineDrained"} <= told, told


def test_a_rolling_update_fails_no_program(kube: Kube) -> None:
    before = {p["metadata"]["name"] for p in workers(kube)}
    start(kube, "roll", 6, 6)
    with step("rolling update"), honest(kube, POOL, HONEST_S) as record:
        kube("patch", f"epool/{POOL}", "--type=merge", "-p", '{"spec":{"engine":{"maxBatchCommands":256}}}')
        until(lambda: not before & {p["metadata"]["name"] for p in workers(kube)}, "the pods are new ones")
        kube.wait(f"epool/{POOL}", "Ready")
    assert record.history("pool", POOL, "Progressing")[-2:] == ["True", "False"]
    assert record.history("pool", POOL, "Ready")[-2:] == ["False", "True"]
    with step("programs end"):
        all_succeeded(ended(kube, "roll"), 6)


@pytest.mark.parametrize("how", ["deleted", "killed"])
def test_a_lost_pod_degrades_the_pool_ends_programs_in_typed_errors_and_comes_back(kube: Kube, how: str) -> None:
    if how == "killed" and not isinstance(kube.cluster, Own):
        pytest.skip("only this machine's own cluster can kill a container")
    start(kube, how, 4, 20)  # long enough to be running when the engine is lost
    (pod,) = workers(kube)
    with step(f"{how} pod replaced"), honest(kube, POOL, HONEST_S) as record:
        if isinstance(kube.cluster, Own) and how == "killed":
            kube.cluster.signal_container(container(pod), "SIGKILL")
        else:
            kube("delete", "pod", pod["metadata"]["name"], "--grace-period=0", "--force")
        until(lambda: "True" in record.history("pool", POOL, "Degraded"), "the pool is Degraded")
        until(lambda: record.history("pool", POOL, "Degraded")[-1] == "False", "it is Degraded no more")
        until(lambda: record.history("pool", POOL, "Ready")[-1] == "True", "it is Ready")
    assert record.history("pool", POOL, "Ready") == ["True", "False", "True"]
    assert condition(kube.get(f"epool/{POOL}"), "Ready")["status"] == "True"
    with step("programs end"):
        states = ended(kube, how, 60)
    for state in states:
        assert state["phase"] == "Succeeded" or state["error"]["name"] in TYPED, state


def test_programs_outlive_the_operator_that_launched_them(kube: Kube) -> None:
    start(kube, "lead", 4, 6)
    kube("delete", "pods", "-l", "app.kubernetes.io/component=operator", "--grace-period=0", "--force")
    kube.apply(run("lead-late", "slow", args=["1"]))
    with step("programs end"):
        states = ended(kube, "lead")
    all_succeeded(states, 5)
