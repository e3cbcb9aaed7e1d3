"""Engines come and go; programs that run on them notice nothing, or get an error that says what happened."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from e2e.cluster.kube import Kube, Object, condition, step, until
from e2e.cluster.watch import honest
from e2e.tests.test_answers import API, run

SLOW = '''
import asyncio
import sys

from inferlet import Context, get_model


async def main() -> str:
    """Keeps its context on one engine for so many seconds."""
    async with Context(await get_model()) as ctx:
        ctx.fill("a")
        for _ in range(int(float(sys.argv[1]) * 5)):
            async for piece in ctx.generate(max_tokens=1):
                pass
            await asyncio.sleep(0.2)
    return "to the end"
'''

HONEST_S = 2.0
"""How late a pool's status may be."""

LEASE_S = 15.0
"""The operators' setting `lease_duration_s`."""

TERMINAL = {"Succeeded", "Failed"}
TYPED = {"WorkerLost", "RuntimeLost", "Draining", "ControlLost", "Unavailable"}
"""What a program may end in whose engine was taken from it."""


@pytest.fixture(scope="module")
def slow(kube: Kube, fake_pool: str) -> str:
    """A program that lasts as long as it is told to."""
    spec = {"source": {"inline": SLOW}, "pool": fake_pool}
    kube.apply({"apiVersion": API, "kind": "Inferlet", "metadata": {"name": "slow"}, "spec": spec})
    kube.wait("ilet/slow", "Ready")
    return "slow"


def start(kube: Kube, prefix: str, count: int, seconds: float) -> list[str]:
    """Runs that are under way."""
    names = [f"{prefix}-{n}" for n in range(count)]
    kube.apply(*(run(name, "slow", args=[str(seconds)], deadlineSeconds=120) for name in names))
    until(lambda: phases(kube, prefix).count("Running") == count, f"{count} runs of {prefix} run")
    return names


def of(kube: Kube, prefix: str) -> list[Object]:
    """The runs whose names begin so."""
    return [r for r in kube.items("irun") if r["metadata"]["name"].startswith(f"{prefix}-")]


def phases(kube: Kube, prefix: str) -> list[str]:
    """Their phases."""
    return [r.get("status", {}).get("phase", "") for r in of(kube, prefix)]


def ended(kube: Kube, prefix: str, timeout_s: float = 90) -> Iterator[Object]:
    """Their states, once all have ended."""
    until(lambda: set(phases(kube, prefix)) <= TERMINAL, f"all runs of {prefix} end", timeout_s)
    yield from (r["status"] for r in of(kube, prefix))


def workers(kube: Kube) -> list[Object]:
    """The pool's pods that aren't about to go."""
    pods = kube.items("pods", "-l", "tartlet.dev/pool=fake")
    return [p for p in pods if "deletionTimestamp" not in p["metadata"]]


def holder(kube: Kube) -> str:
    """The operator that leads."""
    return str(kube.get("lease/tartlet-operator")["spec"].get("holderIdentity", ""))


def test_scaling_up_and_down_fails_no_program(kube: Kube, slow: str) -> None:
    start(kube, "scale", 6, 12)
    with step("1 -> 2"), honest(kube, "fake", HONEST_S):
        kube("scale", "epool/fake", "--replicas=2")
        until(lambda: kube.get("epool/fake")["status"].get("readyReplicas") == 2, "two engines are ready")
        kube.wait("epool/fake", "Ready")
    start(kube, "both", 6, 5)
    with step("2 -> 1"), honest(kube, "fake", HONEST_S):
        kube("scale", "epool/fake", "--replicas=1")
        until(lambda: len(workers(kube)) == 1, "one pod is left")
        kube.wait("epool/fake", "Ready")
    with step("programs end"):
        states = [*ended(kube, "scale"), *ended(kube, "both")]
    assert [s["phase"] for s in states] == ["Succeeded"] * 12, json.dumps(states, indent=1)
    assert {s["result"] for s in states} == {"to the end"}
    reasons = {e["reason"] for e in kube.items("events")}
    assert reasons & {"Draining", "EngineDraining", "Drained"}, reasons


def test_a_rolling_update_fails_no_program(kube: Kube, slow: str) -> None:
    before = {p["metadata"]["name"] for p in workers(kube)}
    start(kube, "roll", 6, 6)
    with step("rolling update"), honest(kube, "fake", HONEST_S):
        kube("patch", "epool/fake", "--type=merge", "-p", '{"spec":{"engine":{"maxBatchCommands":256}}}')
        until(lambda: not before & {p["metadata"]["name"] for p in workers(kube)}, "the pods are new ones")
        kube.wait("epool/fake", "Ready")
    with step("programs end"):
        states = list(ended(kube, "roll"))
    assert [s["phase"] for s in states] == ["Succeeded"] * 6, json.dumps(states, indent=1)


def test_a_killed_pod_ends_programs_in_a_typed_error_and_comes_back(kube: Kube, slow: str) -> None:
    start(kube, "kill", 4, 60)
    pod = workers(kube)[0]["metadata"]["name"]
    seen = []
    with step("killed pod replaced"), honest(kube, "fake", HONEST_S):
        kube("delete", "pod", pod, "--grace-period=0", "--force")
        end = time.monotonic() + 60
        while time.monotonic() < end:
            pool = kube.get("epool/fake")
            seen.append((condition(pool, "Ready")["status"], condition(pool, "Degraded")["status"]))
            if len(seen) > 1 and seen[-1] == ("True", "False") and ("False" in {ready for ready, _ in seen}):
                break
            time.sleep(0.2)
    assert seen[-1] == ("True", "False"), seen
    with step("programs end"):
        states = list(ended(kube, "kill", 60))
    for state in states:
        assert state["phase"] == "Succeeded" or state["error"]["name"] in TYPED, state


def test_the_operator_is_killed_while_programs_run(kube: Kube, slow: str) -> None:
    start(kube, "lead", 4, 6)
    leader = holder(kube)
    with step("another leads"):
        pod = next(
            p["metadata"]["name"]
            for p in kube.items("pods", "-l", "app.kubernetes.io/component=operator")
            if leader.startswith(p["metadata"]["name"])
        )
        kube("delete", "pod", pod, "--grace-period=0", "--force")
        until(lambda: holder(kube) not in {leader, ""}, "another leads", LEASE_S + 5)  # it looks now and then
    kube.apply(run("lead-late", "slow", args=["1"]))
    with step("programs end"):
        states = list(ended(kube, "lead"))
    assert [s["phase"] for s in states] == ["Succeeded"] * 5, json.dumps(states, indent=1)
    assert {s["attempts"] for s in states} == {1}
