"""How long a pool's status and its pods disagreed."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.cluster.watch import Record, Seen, disagreements, events, pool_agrees


def pod(at_s: float, name: str, *, ready: bool, leaving: bool = False) -> Seen:
    body: dict[str, Any] = {"metadata": {}, "status": {"conditions": [{"type": "Ready", "status": str(ready)}]}}
    if leaving:
        body["metadata"]["deletionTimestamp"] = "now"
    return Seen(at_s, "pod", name, body)


def deployment(at_s: float, replicas: int, *, updated: int | None = None, observed: int = 2) -> Seen:
    status = {"observedGeneration": observed, "replicas": replicas}
    status["updatedReplicas"] = replicas if updated is None else updated
    body = {"metadata": {"generation": 2}, "spec": {"replicas": replicas}, "status": status}
    return Seen(at_s, "deployment", "p", body)


def pool(at_s: float, ready: int, *, asked: int = 1, all_: int = 1, draining: int = 0, condition: str = "True") -> Seen:
    status = {"replicas": all_, "readyReplicas": ready, "drainingReplicas": draining}
    conditions = {"conditions": [{"type": "Ready", "status": condition}]}
    return Seen(at_s, "pool", "p", {"metadata": {}, "spec": {"replicas": asked}, "status": {**status, **conditions}})


def test_a_status_that_follows_disagrees_until_it_does() -> None:
    seen = [pod(0, "a", ready=False), pool(0, 0, condition="False"), pod(2, "a", ready=True), pool(2.5, 1)]
    assert disagreements(seen, pool_agrees, 10) == [(2, 0.5)]


def test_one_that_never_follows_disagrees_to_the_end() -> None:
    seen = [pod(0, "a", ready=True), pool(0, 1), Seen(4, "pod", "a", None)]
    assert disagreements(seen, pool_agrees, 10) == [(4, 6)]


def test_pods_about_to_go_are_counted_as_draining_and_as_nothing_else() -> None:
    seen = [pod(0, "a", ready=True), pool(0, 1), pod(3, "a", ready=True, leaving=True)]
    seen += [pool(4, 0, all_=0, draining=1, condition="False"), Seen(6, "pod", "a", None)]
    seen += [pool(7.5, 0, all_=0, condition="False")]
    assert disagreements(seen, pool_agrees, 10) == [(3, 1), (6, 1.5)]


def test_a_pod_that_is_over_counts_as_nothing() -> None:
    over = Seen(0, "pod", "a", {"metadata": {}, "status": {"phase": "Failed", "reason": "Evicted"}})
    assert disagreements([over, pod(0, "b", ready=True), pool(0, 1)], pool_agrees, 10) == []
    assert disagreements([over, pod(0, "b", ready=True), pool(0, 1, all_=2)], pool_agrees, 10) == [(0, 10)]


@pytest.mark.parametrize("wrong", [{"ready": 0}, {"ready": 2}, {"all_": 0}, {"all_": 2}, {"draining": 1}])
def test_each_count_that_is_too_low_or_too_high_is_a_disagreement(wrong: dict[str, int]) -> None:
    right = [pod(0, "a", ready=True), pool(0, 1)]
    assert disagreements(right, pool_agrees, 1) == []
    assert disagreements([*right, pool(0.5, **{"ready": 1, **wrong})], pool_agrees, 1) == [(0.5, 0.5)]  # type: ignore[arg-type]


def test_draining_that_is_not_told_is_a_disagreement() -> None:
    seen = [pod(0, "a", ready=True), pod(0, "b", ready=True, leaving=True), pool(0, 1)]
    assert disagreements(seen, pool_agrees, 1) == [(0, 1)]


def test_ready_with_too_few_pods_is_a_disagreement() -> None:
    assert disagreements([pod(0, "a", ready=True), pool(0, 1, asked=2)], pool_agrees, 1) == [(0, 1)]


@pytest.mark.parametrize("said", ["False", "Unknown"])
def test_not_ready_with_enough_pods_of_a_finished_rollout_is_a_disagreement(said: str) -> None:
    seen = [pod(0, "a", ready=True), deployment(0, 1), pool(0, 1), pool(1, 1, condition=said), pool(4, 1)]
    assert disagreements(seen, pool_agrees, 10) == [(1, 3)]


@pytest.mark.parametrize("rollout", [{"updated": 0}, {"observed": 1}, {"replicas": 2}])
def test_not_ready_during_a_rollout_is_none_until_it_has_ended(rollout: dict[str, int]) -> None:
    under_way = deployment(0, **{"replicas": 1, **rollout})
    seen = [pod(0, "a", ready=True), under_way, pool(0, 1, condition="False"), deployment(5, 1), pool(6, 1)]
    assert disagreements(seen, pool_agrees, 10) == [(5, 1)]


def test_not_ready_with_too_few_pods_is_none() -> None:
    seen = [pod(0, "a", ready=True), deployment(0, 2), pool(0, 1, asked=2, condition="False")]
    assert disagreements(seen, pool_agrees, 10) == []


def test_events_are_taken_as_they_come() -> None:
    lines = iter(['{"a": {}}\n', "\n"])
    stream = events(lines)
    assert next(stream) == {"a": {}}
    with pytest.raises(StopIteration):
        next(stream)


def test_a_conditions_history_is_its_changes() -> None:
    record = Record()
    for each in (pool(0, 0, condition="False"), pool(1, 0, condition="False"), pod(1, "a", ready=True), pool(2, 1)):
        record.add(each)
    assert record.history("pool", "p", "Ready") == ["False", "True"]
    assert record.history("pool", "p", "Degraded") == [""]
    assert record.history("pool", "other", "Ready") == []
