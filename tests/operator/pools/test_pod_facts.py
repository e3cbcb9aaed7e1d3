"""Facts about an engine's pod: what keeps it from running, and which field mends that."""

from __future__ import annotations

from typing import Any

import pytest

from tartlet_common.errors.registry import (
    CheckpointBroken,
    CheckpointMissing,
    InvalidArgument,
    TartletError,
    UnknownFamily,
    WorkerLost,
)
from tartlet_operator.api.reasons import Reason
from tartlet_operator.api.times import parse
from tartlet_operator.pools.pod_facts import START_S, PodFacts, ended_early, in_trouble

NOW = "2026-01-01T00:00:00Z"


def pod(init: dict[str, Any] | None = None, **worker: Any) -> PodFacts:
    status = {"phase": "Running", "containerStatuses": [worker], "initContainerStatuses": [init] if init else []}
    return PodFacts.of({"metadata": {"name": "x"}, "status": status})


def ended(message: str = "", code: int = 1, reason: str = "Error") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


def farewell(error: TartletError) -> str:
    """Return the end of a worker's log."""
    return f'{{"level": "info"}}\ntartlet worker: {error.name} ({error.number}): {error}\n{error.remedy}\n'


def test_a_waiting_pod_says_what_it_waits_for() -> None:
    crash = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"message": "no model"}}}
    made = pod(**crash)
    assert (made.reason, made.message, made.ready) == ("CrashLoopBackOff", "no model (exit status 0)", False)
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    made = PodFacts.of({"metadata": {"name": "x", "deletionTimestamp": NOW}, "status": {"conditions": [unscheduled]}})
    assert (made.reason, made.terminating) == ("Unschedulable", True)
    assert pod(state={"waiting": {"reason": "ContainerCreating"}}).reason == ""


@pytest.mark.parametrize(
    ("error", "field"),
    [
        (CheckpointMissing(path="/models/x", detail="no config.json"), "spec.model.path"),
        (CheckpointBroken(path="/models/x", detail="cut short"), "spec.model.init"),
        (UnknownFamily(family="bert", supported="llama"), "spec.model"),
        (WorkerLost(engine="x"), ""),
    ],
)
def test_a_typed_error_is_the_reason_and_names_the_field(error: TartletError, field: str) -> None:
    made = pod(state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=ended(farewell(error)), restartCount=2)
    assert made.reason == error.name
    assert made.message.startswith(f"{error}. {error.remedy} (")
    assert field in made.message
    assert made.message.endswith("restarted 2 times)")


def test_what_control_says_of_the_engines_sizes_names_them_as_the_pool_does() -> None:
    refused = InvalidArgument(argument="spec.num_pages", detail="14745600000 is not between 1 and 67108864")
    made = pod(state=ended(farewell(refused)))
    assert made.reason == "InvalidArgument"
    assert "see spec.engine: kvMemory, pageSize" in made.message


def test_a_name_of_any_length_fits_into_a_condition() -> None:
    made = pod(state=ended(f"tartlet worker: {'E' * 5000} (1): why"))
    assert (made.reason, made.message) == ("E" * 256, "why.")
    assert len(pod(state={"waiting": {"reason": "W" * 5000}}).reason) == 256


def test_an_engine_that_failed_is_broken_until_it_has_started() -> None:
    last = ended(farewell(CheckpointMissing(path="p", detail="d")))
    states: list[dict[str, Any]] = [last, {"running": {}}, {"waiting": {"reason": "CrashLoopBackOff"}}]
    for state in states:
        assert pod(state=state, lastState=last, started=False).reason == "CheckpointMissing", state
    assert pod(state={"running": {}}, lastState=last, started=True).reason == ""
    assert pod(state={"running": {}}, started=False).reason == ""  # it loads


@pytest.mark.parametrize("last", [ended("", 0, "Completed"), ended('{"level": "info"}', 137), ended("", 143)])
def test_an_engine_that_is_ended_before_it_has_started_says_so(last: dict[str, Any]) -> None:
    states: list[dict[str, Any]] = [last, {"running": {}}]
    for state in states:
        made = pod(state=state, lastState=last, started=False, restartCount=1)
        assert made.reason == Reason.ENGINE_NOT_STARTED, state
        assert "spec.startDeadlineSeconds" in made.message
    waits = {"waiting": {"reason": "CrashLoopBackOff"}}
    assert pod(state=waits, lastState=last, started=False).reason == Reason.ENGINE_NOT_STARTED
    assert pod(state={"running": {}}, lastState=last, started=True).reason == ""


def test_a_silent_process_shows_how_it_ended() -> None:
    assert pod(state=ended("", 137, "OOMKilled")).reason == "OOMKilled"
    made = pod(state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=ended("", 137, "OOMKilled"))
    assert (made.reason, made.message) == (
        "OOMKilled",
        "the engine's process was killed: out of memory (see spec.resources.limits)",
    )
    assert pod(state=ended("trace", 2)).message == "trace (exit status 2)"


def test_the_models_init_step_is_named() -> None:
    waits = {"state": {"waiting": {"reason": "PodInitializing"}}}
    made = pod(init={"state": ended("no such model", 3)}, **waits)
    expected = (Reason.MODEL_INIT_FAILED, "spec.model.init: no such model (exit status 3)")
    assert (made.reason, made.message) == expected
    again = {"state": {"running": {}}, "lastState": ended("no such model", 3), "restartCount": 1, "started": True}
    assert pod(init=again, **waits).reason == Reason.MODEL_INIT_FAILED
    done = {"state": ended("", 0, "Completed"), "lastState": ended("no such model", 3), "restartCount": 1}
    assert pod(init=done, **waits).reason == ""


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ("0/1 nodes are available: 1 Insufficient cpu.", "spec.resources"),
        ("0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.", "spec.nodeSelector"),
        ('0/1 nodes are available: persistentvolumeclaim "m" not found.', "spec.model.volumeClaim"),
    ],
)
def test_an_unschedulable_pod_names_the_fields(message: str, field: str) -> None:
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    made = PodFacts.of({"metadata": {"name": "x"}, "status": {"phase": "Pending", "conditions": [unscheduled]}})
    assert made.message.startswith(f"{message} (see ")
    assert field in made.message


@pytest.mark.parametrize(
    ("reason", "field"), [("CreateContainerConfigError", "spec.podTemplate.env"), ("RunContainerError", "spec.image")]
)
def test_a_container_that_cannot_be_made_names_its_field(reason: str, field: str) -> None:
    waits = {"state": {"waiting": {"reason": reason, "message": 'secret "x" not found'}}}
    assert (pod(**waits).reason, pod(**waits).message.partition(" (see ")[0]) == (reason, 'secret "x" not found')
    assert field in pod(**waits).message
    assert pod(init=waits).message == 'spec.model.init: secret "x" not found'


@pytest.mark.parametrize(
    "message",
    [
        'container has runAsNonRoot and image will run as root (pod: "p_ns(uid)", container: worker)',
        "container has runAsNonRoot and image has non-numeric user (nobody), cannot verify user is non-root",
    ],
)
def test_an_image_that_would_run_as_root_is_named(message: str) -> None:
    waits = {"state": {"waiting": {"reason": "CreateContainerConfigError", "message": message}}}
    assert pod(**waits).message.startswith(f"{message} (see spec.image, ")
    assert pod(init=waits).message.startswith(f"{message} (see spec.model.init.image, ")


@pytest.mark.parametrize(
    ("reason", "message", "field"),
    [
        ("Evicted", 'Usage of EmptyDir volume "models" exceeds the limit "1Gi". ', "spec.model.init.sizeLimit"),
        ("Evicted", 'Usage of EmptyDir volume "data" exceeds the limit "1Gi". ', "spec.podTemplate.volumes"),
        ("Evicted", "The node was low on resource: memory. Threshold quantity: 100Mi.", "spec.resources"),
        ("UnexpectedAdmissionError", "Allocate failed due to no healthy devices present", "spec.resources"),
        ("NodeAffinity", "Pod was rejected: Predicate NodeAffinity failed: node affinity", "spec.nodeSelector"),
        ("Terminated", "Pod was terminated in response to imminent node shutdown.", ""),
    ],
)
def test_an_ended_pod_gives_the_kubelets_reason_and_the_field(reason: str, message: str, field: str) -> None:
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:09Z"}
    worker = {"state": ended("", 0, "Completed"), "started": False}
    body: dict[str, Any] = {"metadata": {"name": "x", "creationTimestamp": NOW}}
    body["status"] = {"phase": "Failed", "reason": reason, "message": message, "conditions": [ready]}
    for containers in ([], [worker]):
        body["status"]["containerStatuses"] = containers
        made = PodFacts.of(body)
        assert (made.over, made.reason, made.ended) == (True, reason, "2026-01-01T00:00:09Z")
        assert made.message.startswith(message.strip())
        assert ("(see " in made.message) == bool(field)
        assert field in made.message
        assert in_trouble([made]) is None
        assert ended_early([made], 1) == made


def test_a_node_that_cannot_begin_with_a_pod_is_given_some_time() -> None:
    since = {"type": "PodReadyToStartContainers", "status": "False", "lastTransitionTime": NOW}
    waits = {"state": {"waiting": {"reason": "ContainerCreating"}}}
    body = {"metadata": {"name": "x"}, "status": {"phase": "Pending", "containerStatuses": [waits]}}
    body["status"]["conditions"] = [since]  # type: ignore[index]
    soon, late = PodFacts.of(body, parse(NOW) + START_S - 1), PodFacts.of(body, parse(NOW) + START_S)
    assert (soon.reason, soon.unstarted) == ("", True)
    assert (late.reason, late.unstarted) == (Reason.POD_UNSTARTED, True)
    assert "spec.podTemplate.volumes" in late.message
    assert "spec.resources.limits" in late.message
    since["status"] = "True"  # it pulls the image
    began = PodFacts.of(body, parse(NOW) + START_S)
    assert (began.reason, began.unstarted) == ("", False)


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "InvalidImageName"])
def test_a_missing_image_names_its_field(reason: str) -> None:
    waits = {"state": {"waiting": {"reason": reason, "message": "not found"}}}
    assert (pod(**waits).reason, pod(**waits).message) == (reason, "spec.image: not found")
    assert pod(init=waits).message == "spec.model.init.image: not found"
