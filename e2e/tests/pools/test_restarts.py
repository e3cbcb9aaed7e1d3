"""After restarts of control, operators and API server, everything that was applied is there again."""

from __future__ import annotations

import os
import time

import pytest

from e2e.cluster.kube import Kube, condition, step, until
from e2e.cluster.provider import Cluster, Own
from e2e.tests.programs.test_answers import run
from e2e.tests.support import story
from e2e.tests.support.havoc import Patient, answers, havoc
from e2e.tests.support.operators import (
    LEASE_S,
    LOOK_S,
    container,
    holder,
    kill,
    leader,
    operators,
    says_it_leads,
)

APART_S = (1.0, 6.0)
"""Bounds of the time between two kills, in seconds; a kill may come before the last killed part is back."""


def hello(kube: Kube, name: str) -> None:
    """Launches another run of hello and waits for its success."""
    kube.apply(run(name, "hello", args=[name], deadlineSeconds=60, retries=3))
    kube.wait(f"irun/{name}", "Succeeded", 60)
    assert kube.get(f"irun/{name}")["status"]["output"] == f"hello {name}\n"


@pytest.fixture(scope="module", autouse=True)
def inferlet(kube: Kube, fake_pool: str) -> None:
    kube.apply_file("docs/examples/inferlet-hello.yaml")
    kube.wait("ilet/hello", "Ready")


def ready(kube: Kube, pool: str) -> bool:
    """Whether a pool is Ready."""
    return condition(kube.get(f"epool/{pool}"), "Ready").get("status") == "True"


def replaced(kube: Kube) -> bool:
    """Whether there are two operators and one of them leads."""
    there = {p["metadata"]["name"] for p in operators(kube) if all(c["ready"] for c in _statuses(p))}
    return len(there) == 2 and holder(kube) in there


def test_control_restarted_has_its_catalogue_and_pools_again(kube: Kube, fake_pool: str) -> None:
    with step("control killed and back"):
        kube("delete", "pods", "-l", "app.kubernetes.io/component=control", "--grace-period=0", "--force")
        kube("rollout", "status", "deploy/tartlet-control", "--timeout=60s")
    with step("pool Ready, catalogue back"):
        until(lambda: ready(kube, fake_pool), "the pool is Ready", 60)
        hello(kube, "after-control")
    assert {e["reason"] for e in kube.items("events")} >= {"CatalogueRebuilt"}


def test_the_api_server_restarted_is_recovered_from(kube: Kube, cluster: Cluster, fake_pool: str) -> None:
    if not isinstance(cluster, Own):
        pytest.skip("only this machine's own cluster has an API server that may be killed")
    with step("API server killed and back"):
        cluster.kill("apiserver")
        until(lambda: answers(kube), "the API server answers", 60)
    with step("run"):
        hello(kube, "after-api-server")
    until(lambda: ready(kube, fake_pool), "the pool is Ready", 30)


def test_one_operator_leads_and_another_takes_over_within_the_lease(kube: Kube) -> None:
    until(lambda: replaced(kube), "two operators are there", 90)
    first = leader(kube)
    assert [says_it_leads(kube, p) for p in operators(kube)].count(True) == 1
    assert says_it_leads(kube, first)
    start = time.monotonic()
    with step("leader killed, another leads"):
        kill(kube, first)
        until(lambda: holder(kube) not in {first["metadata"]["name"], ""}, "another leads", 2 * LEASE_S)
        took_s = time.monotonic() - start
    hello(kube, "after-leader")
    assert took_s <= LEASE_S + LOOK_S


@pytest.mark.beyond_gate
def test_a_leader_that_hangs_is_replaced_and_leads_no_more(kube: Kube, cluster: Cluster) -> None:
    if not isinstance(cluster, Own):
        pytest.skip("only this machine's own cluster can freeze a container")
    until(lambda: replaced(kube), "two operators are there", 90)
    first = leader(kube)
    name = first["metadata"]["name"]
    start = time.monotonic()
    with step("leader hangs, another leads"):
        cluster.freeze(container(first))
        try:
            until(lambda: holder(kube) not in {name, ""}, "another leads", 2 * LEASE_S)
            took_s = time.monotonic() - start
        finally:
            cluster.thaw(container(first))
    with step("the first has ended"):
        until(lambda: _restarts(kube, name) > 0, "it ends and starts again", 30)
    until(lambda: replaced(kube), "both are there", 60)
    assert holder(kube) != name
    assert [says_it_leads(kube, p) for p in operators(kube)].count(True) == 1
    hello(kube, "after-hang")
    assert took_s <= LEASE_S + LOOK_S


@pytest.mark.beyond_gate
def test_what_is_killed_at_random_changes_nothing_in_the_end(kube: Kube) -> None:
    """Kills operators, engines, control, the runtime and the API server while users scale, roll, delete and run."""
    seed = int(os.environ.get("TARTLET_E2E_SEED", time.time_ns() % 100_000))
    kube = Patient(kube.cluster, kube.namespace)
    with step("the story, undisturbed"):
        story.tell(kube, "calm")
        calm = story.last_word(kube, "calm")
    story.expected(calm)
    assert set(story.attempts(kube, "calm").values()) == {1}
    kube("delete", "epool/calm", "--timeout=60s")  # the processor share of this pool's engines
    with step(f"the story, with havoc (TARTLET_E2E_SEED={seed})"):
        with havoc(kube, "wild", seed, APART_S) as toll:
            story.tell(kube, "wild")
            until(lambda: toll.complete, "everything is killed", 120)
        wild = story.last_word(kube, "wild")
    launched = story.attempts(kube, "wild")
    again = {name: count for name, count in launched.items() if count > 1}
    with step(f"killed: {dict(toll.counts)}; launched again: {again}; compared"):
        assert wild == calm
    assert max(launched.values()) <= 1 + toll.programs
    kube("delete", "epool/wild", "--timeout=60s")


def _restarts(kube: Kube, pod: str) -> int:
    return sum(c["restartCount"] for c in _statuses(kube.get(f"pod/{pod}")))


def _statuses(pod: dict[str, object]) -> list[dict[str, int]]:
    found: list[dict[str, int]] = pod["status"].get("containerStatuses", [])  # type: ignore[attr-defined]
    return found
