"""Limits on taking engines from a pool: through the Eviction API, by scaling down, by a new image."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from e2e.cluster.artifacts.images import Image
from e2e.cluster.kube import Kube, Object, Refused, condition, step, until
from e2e.cluster.provider import Own
from e2e.cluster.watch import honest, recording
from e2e.tests.conftest import pool
from e2e.tests.pools.test_pools import HONEST_S, all_succeeded, ended, start, workers
from e2e.tests.programs.test_answers import run
from e2e.tests.support.story import SLOW, inferlet, of

POOL = "bounds"
PROGRAM = "bounds-slow"
BROKEN = "bounds-broken"
GRACE_S = 10
AGAIN = "localhost/tartlet-again:e2e"
"""A second name of the same image."""


@pytest.fixture(scope="module", autouse=True)
def two_engines(kube: Kube) -> Iterator[None]:
    """A pool of two engines, of which disruptions must leave one."""
    spec: Object = {"replicas": 2, "minAvailable": 1, "drain": {"graceSeconds": GRACE_S}}
    kube.apply(pool(POOL, **spec), inferlet(PROGRAM, POOL, {"inline": SLOW}))
    kube.wait(f"epool/{POOL}", "Ready")
    kube.wait(f"ilet/{PROGRAM}", "Ready")
    yield
    kube("delete", f"epool/{POOL}", "--timeout=60s")


def names(kube: Kube) -> set[str]:
    """The pool's pods."""
    return {p["metadata"]["name"] for p in workers(kube, POOL)}


def evict(kube: Kube, pod: str) -> None:
    """Asks the API server to evict a pod, as `kubectl drain` does."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": kube.namespace}}
    path = f"/api/v1/namespaces/{kube.namespace}/pods/{pod}/eviction"
    kube("create", "--raw", path, "-f", "-", text=json.dumps(body))


def may_evict(kube: Kube) -> bool:
    """Whether the pool's budget allows a disruption now."""
    return bool(kube.get(f"pdb/{POOL}").get("status", {}).get("disruptionsAllowed", 0))


def is_ready(kube: Kube) -> bool:
    """Whether the pool has reached its newest spec."""
    body = kube.get(f"epool/{POOL}")
    ready = condition(body, "Ready")
    return (ready["status"], ready["observedGeneration"]) == ("True", body["metadata"]["generation"])


def held(kube: Kube, pod: str) -> int:
    """Returns how many programs an engine had when control cordoned it."""
    lines = kube("logs", "deploy/tartlet-control", "--tail=-1").splitlines()
    (said,) = [line for line in lines if f"engine {kube.namespace}/{pod} is draining, with " in line]
    return int(said.partition(" is draining, with ")[2].partition(" ")[0])


def drained(kube: Kube, pod: str) -> bool:
    """Whether the pool's events say that an engine waited and then ended."""
    told = {(e["reason"], e["message"]) for e in kube.items("events") if e["involvedObject"]["name"] == POOL}
    return {("EngineDraining", f"{pod} waits for its programs"), ("EngineDrained", f"{pod} has gone")} <= told


def test_an_eviction_drains_its_engine_and_one_too_many_is_refused(kube: Kube) -> None:
    first, second = sorted(names(kube))
    start(kube, "evict", 6, 4, PROGRAM)
    until(lambda: may_evict(kube), "the budget lets one go")
    with step("evicted, drained, replaced"), honest(kube, POOL, HONEST_S):
        evict(kube, first)
        with pytest.raises(Refused, match=r"TooManyRequests.*disruption budget"):
            evict(kube, second)
        until(lambda: first not in names(kube), "it has gone")
        kube.wait(f"epool/{POOL}", "Ready")
    all_succeeded(ended(kube, "evict"), 6)
    assert held(kube, first) > 0
    until(lambda: drained(kube, first), "events tell so", 10)
    until(lambda: may_evict(kube), "the budget lets another one go")
    with step("the other one"):
        evict(kube, second)
        until(lambda: second not in names(kube), "it has gone")
        until(lambda: may_evict(kube), "it is replaced")


def test_engines_that_break_keep_no_node_from_draining(kube: Kube) -> None:
    """Broken engines may be evicted although the budget spares none."""
    wrong = {"name": "PYTHONHOME", "value": "/none"}
    kube.apply(pool(BROKEN, replicas=2, minAvailable=1, podTemplate={"env": [wrong]}))
    until(lambda: [p["status"]["phase"] for p in workers(kube, BROKEN)] == ["Running"] * 2, "both were begun")
    until(lambda: kube.get(f"pdb/{BROKEN}").get("status", {}).get("expectedPods") == 2, "the budget counts them")
    assert kube.get(f"pdb/{BROKEN}")["status"]["disruptionsAllowed"] == 0
    for each in workers(kube, BROKEN):
        evict(kube, each["metadata"]["name"])
    kube("delete", f"epool/{BROKEN}", "--timeout=60s")


def test_an_engine_that_goes_waits_no_longer_than_its_grace_and_its_programs_go_on(kube: Kube) -> None:
    """Programs that are longer than the grace go on at the engine that stays, from where they were."""
    kube.wait(f"epool/{POOL}", "Ready")
    before = names(kube)
    start(kube, "long", 4, 30, PROGRAM)
    start(kube, "short", 6, 4, PROGRAM)
    with step("2 -> 1"), honest(kube, POOL, HONEST_S):
        kube("scale", f"epool/{POOL}", "--replicas=1")
        until(lambda: len(names(kube)) == 1, "one pod is left")
        kube.wait(f"epool/{POOL}", "Ready")
    (gone,) = before - names(kube)
    all_succeeded(ended(kube, "short"), 6)
    until(lambda: drained(kube, gone), "events tell so", 10)
    all_succeeded(ended(kube, "long"), 4)
    assert {r["status"]["attempts"] for r in of(kube, "irun", "long-")} == {1}
    assert held(kube, gone) > 0


def patch(kube: Kube, **spec: object) -> None:
    """Changes the pool's spec."""
    kube("patch", f"epool/{POOL}", "--type=merge", "-p", json.dumps({"spec": spec}))


def test_a_rolling_update_to_another_form_of_the_model_fails_no_program(kube: Kube) -> None:
    """Engines of two page sizes can't serve a model together, so new engines wait until the old ones are cordoned."""
    before, late = names(kube), 0
    start(kube, "form", 6, 8, PROGRAM)
    with step("rolling update of the page size"), recording(kube, {"pool": [f"epool/{POOL}"]}) as record:
        patch(kube, engine={"pageSize": 8})
        while before & names(kube) or not is_ready(kube):
            late += 1
            assert late < 60
            kube.apply(run(f"form-late-{late}", PROGRAM, args=["0.4"]))
    kube.apply(run("form-after", PROGRAM, args=["0.4"]))
    all_succeeded(ended(kube, "form"), 6 + late + 1)
    ready = [{e["pod"] for e in (s.body or {})["status"]["engines"] if e["state"] == "Ready"} for s in record.seen]
    assert all(not pods & before or pods <= before for pods in ready), "programs get one form or the other"
    assert ready[-1]
    assert not ready[-1] & before
    assert record.history("pool", POOL, "Degraded") == ["False"]


def test_a_pool_that_no_node_takes_says_so_until_its_spec_is_mended(kube: Kube) -> None:
    before = names(kube)
    patch(kube, nodeSelector={"tartlet.dev/node": "nowhere"})
    until(lambda: condition(kube.get(f"epool/{POOL}"), "Degraded").get("reason") == "Unschedulable", "it says so")
    with step("mended"):
        patch(kube, nodeSelector=None)
        kube.wait(f"epool/{POOL}", "Ready")
    assert names(kube) == before


@pytest.mark.beyond_gate
def test_a_rolling_update_of_the_image_fails_no_program(kube: Kube, image: Image) -> None:
    if not isinstance(kube.cluster, Own):
        pytest.skip("only this machine's own cluster can give an image another name")
    kube.cluster.name_image(image.name, AGAIN)
    before = names(kube)
    start(kube, "image", 6, 8, PROGRAM)
    with step("rolling update of the image"), honest(kube, POOL, HONEST_S):
        patch(kube, image=AGAIN)
        until(lambda: not before & names(kube), "the pods are new ones")
        kube.wait(f"epool/{POOL}", "Ready")
    all_succeeded(ended(kube, "image"), 6)
    (made,) = workers(kube, POOL)
    assert made["spec"]["containers"][0]["image"] == AGAIN
    assert all(held(kube, pod) > 0 for pod in before)
    patch(kube, image="", replicas=0)
    until(lambda: not names(kube), "nobody needs it any more")
    kube.cluster.forget_images(AGAIN)


def test_a_run_waits_for_the_engine_that_it_needs(kube: Kube) -> None:
    patch(kube, image="", replicas=0)
    until(lambda: condition(kube.get(f"ilet/{PROGRAM}"), "Runnable").get("status") == "False", "nothing can run it")
    kube.apply(run("bounds-waits", PROGRAM, args=["0.4"]))
    until(
        lambda: condition(kube.get("irun/bounds-waits"), "Running").get("reason") == "InferletNotRunnable", "it waits"
    )
    with step("an engine, and the run"):
        patch(kube, replicas=1)
        kube.wait("irun/bounds-waits", "Succeeded")
    assert kube.get("irun/bounds-waits")["status"]["attempts"] == 1
