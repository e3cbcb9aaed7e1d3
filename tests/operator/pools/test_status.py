"""An EnginePool's status."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tartlet_operator.api.conditions import find
from tartlet_operator.api.reasons import EventReason, Reason
from tartlet_operator.pools.pod_facts import PodFacts
from tartlet_operator.pools.status import DeploymentFacts, PoolFacts, events, status
from tests.operator.pools.pool_facts import LATER, NONE, NOW, conditions, facts, pod

PODS = st.builds(
    PodFacts,
    name=st.sampled_from(["a", "b", "c", "d"]),
    ready=st.booleans(),
    terminating=st.booleans(),
    running=st.booleans(),
    reason=st.sampled_from(["", "CrashLoopBackOff", "Unschedulable"]),
    over=st.booleans(),
).map(lambda p: replace(p, reason="Evicted") if p.over else p)
FACTS = st.builds(
    PoolFacts,
    name=st.just("p"),
    generation=st.integers(1, 3),
    replicas=st.integers(0, 3),
    deployment=st.builds(
        DeploymentFacts,
        generation=st.integers(1, 3),
        observed_generation=st.integers(0, 3),
        replicas=st.integers(0, 4),
        updated=st.integers(0, 4),
        current=st.booleans(),
    ),
    pods=st.lists(PODS, max_size=4, unique_by=lambda p: p.name),
    engines=st.none()
    | st.dictionaries(
        st.sampled_from(["a", "b", "c", "d"]), st.sampled_from(["ready", "cordoned", "draining", "standby"])
    ),
    refused=st.sampled_from(["", "Invalid: why"]),
)


@given(FACTS, FACTS)
def test_ready_means_rolled_out_with_enough_engines(before: PoolFacts, now: PoolFacts) -> None:
    s = status(now, status(before, NONE, NOW), LATER)
    ready = find(s.conditions, "Ready")
    assert ready is not None
    if ready.status == "True":
        d = now.deployment
        assert d.current
        assert not now.refused
        assert d.observed_generation >= d.generation
        assert d.replicas == d.updated == now.replicas
        assert s.ready_replicas >= now.replicas
        assert conditions(s)["Progressing"][0] == "False"


@given(FACTS)
def test_counts_and_engines_agree_with_the_pods(f: PoolFacts) -> None:
    s = status(f, NONE, NOW)
    living = [p for p in f.pods if not p.over]
    assert {e.pod for e in s.engines} == {p.name for p in living}
    assert s.replicas == sum(not p.terminating for p in living)
    told = f.engines or {}
    assert s.ready_replicas == sum(p.ready and not p.terminating and told.get(p.name) == "ready" for p in living)
    assert s.observed_generation == f.generation
    assert all(c.observed_generation == f.generation for c in s.conditions)


@given(FACTS)
def test_the_same_facts_change_nothing(f: PoolFacts) -> None:
    once = status(f, NONE, NOW)
    twice = status(f, once, LATER)
    settled = status(f, twice, LATER)
    assert settled == twice
    assert events(twice, settled) == []


def test_a_lost_pod_degrades_the_pool_before_the_deployment_replaces_it() -> None:
    s = status(facts(1), NONE, NOW)
    gone = facts(1, pods=(), engines={}, deployment=DeploymentFacts(1, 1, 0, 0))
    s = status(gone, s, LATER)
    assert conditions(s)["Progressing"][0] == "False"
    assert conditions(s)["Degraded"] == ("True", Reason.ENGINES_MISSING)
    s = status(facts(1, pods=(pod("p-1", ready=False),), engines={}), s, LATER)
    assert conditions(s)["Degraded"] == ("True", Reason.ENGINES_MISSING)


def test_a_rollout_progresses_until_all_engines_serve_then_missing_engines_degrade_the_pool() -> None:
    starting = facts(2, engines={"p-0": "ready"})
    s = status(starting, NONE, NOW)
    assert conditions(s) == {
        "Ready": ("False", Reason.ROLLING_OUT),
        "Available": ("True", Reason.ENGINES_READY),
        "Progressing": ("True", Reason.ROLLING_OUT),
        "Degraded": ("False", Reason.AS_EXPECTED),
    }
    s = status(facts(2), s, NOW)
    assert conditions(s)["Ready"] == ("True", Reason.ENGINES_READY)
    s = status(starting, s, NOW)
    assert conditions(s) == {
        "Ready": ("False", Reason.ENGINE_LOST),
        "Available": ("True", Reason.ENGINES_READY),
        "Progressing": ("False", Reason.SETTLED),
        "Degraded": ("True", Reason.ENGINE_LOST),
    }
    s = status(facts(2), s, NOW)
    assert conditions(s)["Degraded"] == ("False", Reason.AS_EXPECTED)


def test_a_rollout_is_not_ready_even_if_enough_engines_serve() -> None:
    s = status(facts(2), NONE, NOW)
    rolling = facts(2, generation=2, deployment=DeploymentFacts(2, 2, 3, 1))
    assert conditions(status(rolling, s, NOW))["Ready"][0] == "False"
    unseen = facts(2, generation=2, deployment=DeploymentFacts(2, 1, 2, 2))
    assert conditions(status(unseen, s, NOW))["Ready"][0] == "False"


def test_a_pods_trouble_becomes_the_pools_reason() -> None:
    f = facts(1, pods=(pod("p-0", ready=False, reason="ImagePullBackOff"),), engines={})
    s = status(f, NONE, NOW)
    assert conditions(s)["Ready"] == ("False", "ImagePullBackOff")
    assert conditions(s)["Degraded"] == ("True", "ImagePullBackOff")
    assert [h.reason for h in events(NONE, s)] == [EventReason.ROLLOUT_STARTED, EventReason.POOL_DEGRADED]


def test_a_refused_spec_degrades_the_pool_and_keeps_the_live_state() -> None:
    served = status(facts(2), NONE, NOW)
    left = facts(1, generation=2, refused="Invalid: tolerations[0]: correct it")
    left = replace(left, deployment=DeploymentFacts(2, 2, 1, 1, current=False))
    s = status(left, served, LATER)
    assert conditions(s) == {
        "Ready": ("False", Reason.RECONCILE_FAILED),
        "Available": ("True", Reason.ENGINES_READY),
        "Progressing": ("False", Reason.RECONCILE_FAILED),
        "Degraded": ("True", Reason.RECONCILE_FAILED),
    }
    assert (s.ready_replicas, s.updated_replicas, [e.pod for e in s.engines]) == (1, 0, ["p-0"])
    assert [c.message for c in s.conditions if c.type == "Ready"] == [f"{left.refused}; 1 of 1 engines take programs"]
    assert [h.reason for h in events(served, s)] == [EventReason.RECONCILE_FAILED]
    gone = replace(left, pods=(), engines=None, deployment=DeploymentFacts.of({}, current=False))
    after = status(gone, s, LATER)
    unavailable = {"Available": ("Unknown", Reason.CONTROL_UNREACHABLE)}
    assert conditions(after) == conditions(s) | unavailable
    assert (after.ready_replicas, after.engines) == (0, [])
    assert EventReason.RECONCILE_FAILED not in [h.reason for h in events(s, after)]

    # what the API server takes again is on its way, not broken
    starting = facts(2, generation=2, engines={"p-0": "ready"})
    assert conditions(status(starting, after, LATER))["Degraded"] == ("False", Reason.AS_EXPECTED)


def test_a_refused_budget_leaves_the_rollout_as_it_is() -> None:
    s = status(facts(1, refused="NameTaken: why"), NONE, NOW)
    assert conditions(s) == {
        "Ready": ("False", Reason.RECONCILE_FAILED),
        "Available": ("True", Reason.ENGINES_READY),
        "Progressing": ("False", Reason.SETTLED),
        "Degraded": ("True", Reason.RECONCILE_FAILED),
    }
    assert s.updated_replicas == 1


def test_pods_that_the_api_server_refuses_degrade_the_pool() -> None:
    refused = DeploymentFacts(1, 1, 0, 0, refused="pods are forbidden: exceeded quota")
    s = status(facts(1, pods=(), engines={}, deployment=refused), NONE, NOW)
    assert conditions(s) == {
        "Ready": ("False", Reason.PODS_REFUSED),
        "Available": ("False", Reason.PODS_REFUSED),
        "Progressing": ("False", Reason.ROLLOUT_STUCK),
        "Degraded": ("True", Reason.PODS_REFUSED),
    }
    ready = find(s.conditions, "Ready")
    assert ready is not None
    assert "exceeded quota (correct" in ready.message
    assert "spec.resources" in ready.message


def test_a_pod_of_an_earlier_spec_no_longer_counts_as_trouble() -> None:
    old = replace(pod("p-9", ready=False, reason="CheckpointMissing"), created="2026-01-01T00:00:00Z", revision="a")
    new = replace(pod("p-1", ready=False), created="2026-01-01T00:00:09Z", revision="b")
    rolling = facts(1, generation=2, pods=(old, new), engines={}, deployment=DeploymentFacts(2, 2, 2, 1))
    assert conditions(status(rolling, NONE, NOW))["Degraded"] == ("False", Reason.AS_EXPECTED)
    broken = replace(rolling, pods=(old, replace(new, reason="CheckpointBroken")))
    assert conditions(status(broken, NONE, NOW))["Degraded"] == ("True", "CheckpointBroken")


def test_an_ended_pod_is_trouble_until_its_replacement_serves() -> None:
    first = replace(pod("p-0"), created="2026-01-01T00:00:00Z")
    evicted = replace(pod("p-1", ready=False, reason="Evicted"), created=first.created, over=True, ended=LATER)
    two = facts(2, pods=(first, evicted), engines={"p-0": "ready"}, deployment=DeploymentFacts(1, 1, 1, 1))
    before = status(facts(2), NONE, NOW)
    s = status(two, before, LATER)
    assert (s.replicas, [e.pod for e in s.engines]) == (1, ["p-0"])
    assert conditions(s)["Degraded"] == ("True", "Evicted")

    loads = replace(pod("p-2", ready=False), created=LATER)  # made in the second in which the other ended
    replaced = replace(two, pods=(first, evicted, loads), deployment=DeploymentFacts(1, 1, 2, 2))
    for old in (NONE, s):  # also in a pool that never got so far: it would be evicted again and again, unseen
        assert conditions(status(replaced, old, LATER))["Degraded"] == ("True", "Evicted")
    worse = replace(replaced, pods=(first, evicted, replace(loads, reason="Unschedulable")))
    assert conditions(status(worse, s, LATER))["Degraded"] == ("True", "Unschedulable")

    serves = replace(loads, ready=True)
    engines = {"p-0": "ready", "p-2": "ready"}
    s = status(replace(replaced, pods=(first, evicted, serves), engines=engines), s, LATER)
    assert (s.replicas, s.ready_replicas, len(s.engines)) == (2, 2, 2)
    assert {kind: told[0] for kind, told in conditions(s).items()} == {
        "Ready": "True",
        "Available": "True",
        "Progressing": "False",
        "Degraded": "False",
    }
    # it stays for days: what ails a later one is nothing of it
    unready = replace(replaced, pods=(first, evicted, replace(serves, ready=False, started=True)))
    assert conditions(status(unready, s, LATER))["Degraded"] == ("True", Reason.ENGINE_LOST)
    lost = replace(replaced, pods=(first, evicted, serves), engines={"p-0": "ready"})
    assert conditions(status(lost, s, LATER))["Degraded"] == ("True", Reason.ENGINE_LOST)
    gone = replace(facts(0), pods=(evicted,), engines={})
    assert conditions(status(gone, s, LATER))["Ready"] == ("True", Reason.SCALED_TO_ZERO)


def test_a_rollout_that_finds_no_room_says_what_it_needs() -> None:
    def told(message: str, *, old: bool) -> str:
        late = replace(pod("p-1", ready=False, reason="Unschedulable"), message=message, revision="b", created=NOW)
        pods = (replace(pod("p-0"), revision="a"), late) if old else (late,)
        s = status(facts(1, generation=2, pods=pods, deployment=DeploymentFacts(2, 2, len(pods), 1)), NONE, NOW)
        degraded = find(s.conditions, "Degraded")
        assert degraded is not None
        return degraded.message

    assert "a rollout needs room for one more pod" in told("1 Insufficient cpu.", old=True)
    assert "rollout" not in told("1 Insufficient cpu.", old=False)
    assert "rollout" not in told('persistentvolumeclaim "m" not found.', old=True)


def test_missing_engines_say_where_to_look() -> None:
    served = status(facts(1), NONE, NOW)
    unmade = facts(1, pods=(), engines={}, deployment=DeploymentFacts(1, 1, 0, 0))
    unready = facts(1, pods=(pod("p-0", ready=False),), engines={})
    for now, said in (
        (facts(1, engines={}), "pod p-0: see the pod's log"),
        (unready, "pod p-0 is Loading: see its log"),
        (unmade, "ReplicaSet"),
    ):
        told = find(status(now, served, NOW).conditions, "Degraded")
        assert told is not None
        assert said in told.message
        assert told.message.endswith("; 0 of 1 engines take programs")


def test_a_change_of_replicas_alone_is_no_rollout() -> None:
    before = status(facts(2), NONE, NOW)
    fewer = facts(1, generation=2, deployment=DeploymentFacts(2, 1, 2, 2))
    after = status(fewer, before, LATER)
    assert conditions(after)["Progressing"] == ("True", Reason.ROLLING_OUT)
    assert [h.reason for h in events(before, after)] == [EventReason.ROLLOUT_STARTED]
    assert events(before, after, same_pods=True) == []


def test_a_pool_of_no_replicas_is_not_available_and_ready_until_runs_wait_for_it() -> None:
    s = status(facts(0), NONE, NOW)
    assert conditions(s) == {
        "Ready": ("True", Reason.SCALED_TO_ZERO),
        "Available": ("False", Reason.SCALED_TO_ZERO),
        "Progressing": ("False", Reason.SETTLED),
        "Degraded": ("False", Reason.AS_EXPECTED),
    }
    assert s.engines == []
    s = status(facts(0, wanted=True), s, LATER)
    assert conditions(s)["Ready"] == ("False", Reason.SCALED_TO_ZERO)
    told = find(s.conditions, "Ready")
    assert told is not None
    assert "runs wait" in told.message
    assert conditions(status(facts(0, engines=None), NONE, NOW))["Available"] == ("False", Reason.SCALED_TO_ZERO)


def test_a_stuck_rollout_beside_a_serving_engine_is_available_and_makes_no_progress() -> None:
    served = status(facts(1), NONE, NOW)
    old = replace(pod("p-0"), created=NOW, revision="a")
    new = replace(pod("p-1", ready=False, reason="ImagePullBackOff"), created=LATER, revision="b")
    rolling = facts(1, generation=2, pods=(old, new), deployment=DeploymentFacts(2, 2, 2, 1))
    started = status(replace(rolling, pods=(old, replace(new, reason=""))), served, LATER)
    stuck = status(rolling, started, LATER)
    assert conditions(stuck) == {
        "Ready": ("False", "ImagePullBackOff"),
        "Available": ("True", Reason.ENGINES_READY),
        "Progressing": ("False", Reason.ROLLOUT_STUCK),
        "Degraded": ("True", "ImagePullBackOff"),
    }
    again = status(replace(rolling, pods=(old, replace(new, reason=""))), stuck, LATER)
    assert conditions(again)["Progressing"] == ("True", Reason.ROLLING_OUT)
    assert EventReason.ROLLOUT_STARTED not in [h.reason for h in events(stuck, again)], "it is the same rollout"


def test_a_deleted_pool_says_how_many_programs_drain_and_for_how_long() -> None:
    going = [replace(pod(f"p-{i}", terminating=True), ends_at=100.0 + i) for i in range(2)]
    draining = facts(2, deleting=True, pods=tuple(going), programs={"p-0": 2, "p-1": 1}, now=88.0)
    s = status(draining, status(facts(2), NONE, NOW), LATER)
    told = find(s.conditions, "Ready")
    assert told is not None
    assert (told.status, told.reason) == ("False", Reason.DRAINING)
    assert told.message.endswith("programs left: 3 on 2 engines, at most 15 s more")
    assert conditions(s)["Available"] == ("False", Reason.DRAINING)
    silent = find(status(replace(draining, engines=None), s, LATER).conditions, "Ready")
    assert silent is not None
    assert "control doesn't answer" in silent.message


def test_draining_is_counted_and_makes_events() -> None:
    before = status(facts(2), NONE, NOW)
    pods = (pod("p-0"), pod("p-1", terminating=True))
    during = status(facts(1, generation=2, pods=pods), before, NOW)
    assert (during.replicas, during.draining_replicas) == (1, 1)
    assert EventReason.ENGINE_DRAINING in [h.reason for h in events(before, during)]
    after = status(facts(1, generation=2), during, NOW)
    assert EventReason.ENGINE_DRAINED in [h.reason for h in events(during, after)]


def test_transition_times_change_with_the_status_alone() -> None:
    first = status(facts(1), NONE, NOW)
    second = status(facts(1, generation=2), first, LATER)
    assert {c.last_transition_time for c in second.conditions} == {NOW}
    third = status(facts(1, generation=2, engines={}), second, LATER)
    ready = find(third.conditions, "Ready")
    assert ready is not None
    assert ready.last_transition_time == LATER
