"""For how long a pool's status and its pods disagreed."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.cluster.watch import Record, Seen, disagreements, events, pool_agrees


def pod(at_s: float, name: str, *, ready: bool, leaving: bool = False) -> Seen:
    body: dict[str, Any] = {"metadata": {}, "status": {"conditions": [{"type": "Ready", "status": str(ready)}]}}
    if leaving:
        body["metadata"]["deletionTimestamp"] = "now"
    return Seen(at_s, "pod", name, body)


def pool(at_s: float, ready: int, *, replicas: int = 1, condition: str = "True") -> Seen:
    status = {"readyReplicas": ready, "conditions": [{"type": "Ready", "status": condition}]}
    return Seen(at_s, "pool", "p", {"metadata": {}, "spec": {"replicas": replicas}, "status": status})


def test_a_status_that_follows_disagrees_until_it_does() -> None:
    seen = [pool(0, 0, condition="False"), pod(1, "a", ready=False), pod(2, "a", ready=True), pool(2.5, 1)]
    assert disagreements(seen, pool_agrees, 10) == [(2, 0.5)]


def test_one_that_never_follows_disagrees_to_the_end() -> None:
    seen = [pod(0, "a", ready=True), pool(0, 1), Seen(4, "pod", "a", None)]
    assert disagreements(seen, pool_agrees, 10) == [(4, 6)]


def test_pods_about_to_go_do_not_count() -> None:
    seen = [pod(0, "a", ready=True), pool(0, 1), pod(3, "a", ready=True, leaving=True), pool(4, 0, condition="False")]
    assert disagreements(seen, pool_agrees, 10) == [(3, 1)]


def test_ready_with_too_few_pods_is_a_disagreement() -> None:
    assert disagreements([pod(0, "a", ready=True), pool(0, 1, replicas=2)], pool_agrees, 1) == [(0, 1)]


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
