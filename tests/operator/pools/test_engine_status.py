"""What a pool's status says of its engines: as they load, stand by, and while control is away."""

from __future__ import annotations

from dataclasses import replace

from tartlet_operator.api.conditions import find
from tartlet_operator.api.reasons import Reason
from tartlet_operator.pools.status import DeploymentFacts, events, own, status
from tests.operator.pools.pool_facts import LATER, NONE, NOW, conditions, facts, pod


def test_a_standby_engine_is_not_ready_and_degrades_the_pool_after_a_rollout() -> None:
    rolling = facts(1, pods=(pod("p-0"), pod("p-1")), engines={"p-0": "ready", "p-1": "standby"})
    s = status(replace(rolling, deployment=DeploymentFacts(1, 1, 2, 1)), NONE, NOW)
    assert [e.state for e in s.engines] == ["Ready", "Standby"]
    assert conditions(s)["Ready"] == ("False", Reason.ROLLING_OUT)
    going = {"p-0": "standby", "p-5d9c-x7k2p": "ready"}  # of the pool itself: control hasn't told yet that it has gone
    s = status(facts(1, engines=going, own=["p-5d9c-x7k2p"]), NONE, NOW)
    assert conditions(s)["Progressing"][0] == "True"
    for elsewhere in ({}, {"p-5d9c-x7k2p": "ready"}):  # of another pool
        standing_by = facts(1, engines={"p-0": "standby", **elsewhere}, own=["p-0"], rivals="EnginePool ns/q")
        s = status(standing_by, NONE, NOW)
        assert s.ready_replicas == 0
        assert conditions(s)["Progressing"][0] == "False"
        assert conditions(s)["Degraded"] == ("True", Reason.ENGINE_STANDS_BY)
        ready = find(s.conditions, "Ready")
        assert ready is not None
        assert "spec.engine.pageSize" in ready.message
        assert "EnginePool ns/q" in ready.message


def test_a_pools_own_engines_are_known_until_control_forgets_them() -> None:
    old = status(facts(1), NONE, NOW)  # of p-0
    new = (pod("p-1"),)
    told = {"p-0": "ready", "p-1": "standby", "p-elsewhere": "ready"}
    known = own((), old, new, told)
    assert known == {"p-0", "p-1"}
    after = status(facts(1, pods=new, engines=told, own=known), old, NOW)
    for engines in (told, None):
        assert own(known, after, new, engines) == known
    assert own(known, after, new, {"p-1": "ready", "p-elsewhere": "ready"}) == {"p-1"}


def test_a_loading_engine_is_not_broken() -> None:
    pods = (pod("p-0", ready=False), pod("p-1", ready=False, reason="CheckpointBroken"))
    s = status(facts(2, pods=pods, engines={}), NONE, NOW)
    assert [(e.state, e.reason) for e in s.engines] == [("Loading", ""), ("Broken", "CheckpointBroken")]


def test_without_control_nobody_knows() -> None:
    served = status(facts(1), NONE, NOW)
    lost = status(facts(1, engines={}), served, NOW)
    for before in (served, lost):
        s = status(facts(1, engines=None), before, LATER)
        for kind in ("Ready", "Available", "Degraded"):
            assert conditions(s)[kind] == ("Unknown", Reason.CONTROL_UNREACHABLE)
            told = find(s.conditions, kind)
            assert told is not None
            assert "its log" in told.message
        assert s.ready_replicas == 0
    broken = facts(1, engines=None, pods=(pod("p-0", ready=False, reason="CheckpointBroken"),))
    assert conditions(status(broken, served, NOW))["Degraded"] == ("True", "CheckpointBroken")
    assert conditions(status(facts(0, engines=None), NONE, NOW))["Degraded"] == ("False", Reason.AS_EXPECTED)


def test_an_engine_that_starts_while_control_is_away_is_found_when_control_returns() -> None:
    loading = facts(1, engines=None, pods=(pod("p-0", ready=False),))
    away = status(loading, NONE, NOW)
    assert conditions(away)["Progressing"] == ("True", Reason.ROLLING_OUT)
    assert conditions(away)["Ready"] == ("Unknown", Reason.CONTROL_UNREACHABLE)
    back = status(replace(loading, engines={}), away, LATER)
    assert conditions(back)["Ready"] == ("False", Reason.ROLLING_OUT)
    assert conditions(back)["Degraded"] == ("False", Reason.AS_EXPECTED)
    assert events(away, back) == []
    # one that had served is settled still
    for now in (loading, replace(loading, engines={})):
        assert conditions(status(now, status(facts(1), NONE, NOW), LATER))["Progressing"][0] == "False"


def test_an_engine_that_has_loaded_is_not_said_to_load_while_it_is_away_from_control() -> None:
    away = replace(pod("p-0", ready=False), started=True)
    loading = pod("p-1", ready=False)
    served = status(facts(2, pods=(pod("p-0"), loading)), NONE, NOW)
    first = status(facts(1, pods=(away,), engines={"p-0": "ready"}), NONE, NOW)
    assert [e.state for e in first.engines] == ["Loading"], "its pod is ready with the next probe"
    states = {
        name: [e.state for e in status(facts(2, pods=(away, loading), engines=told), served, NOW).engines]
        for name, told in (("no control", None), ("not joined", {}), ("joined", {"p-0": "ready"}))
    }
    assert states == {
        "no control": ["Unknown", "Loading"],
        "not joined": ["Lost", "Loading"],
        "joined": ["Joining", "Loading"],
    }


def test_programs_are_shown_by_engine() -> None:
    s = status(facts(2, programs={"p-1": 3, "elsewhere": 9}), NONE, NOW)
    assert [(e.pod, e.programs) for e in s.engines] == [("p-0", 0), ("p-1", 3)]
