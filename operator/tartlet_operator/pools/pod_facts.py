"""Facts about an engine's pod: how far it is, what keeps it from running, and which field mends that. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tartlet_operator.api.reasons import Reason
from tartlet_operator.api.times import parse

_QUIET: Final = frozenset({"", "ContainerCreating", "PodInitializing", "Completed"})
"""Reasons of waiting containers that mean no trouble."""

_CRASHED: Final = frozenset({"CrashLoopBackOff", "Completed", "ContainerStatusUnknown", "Error"})
"""Reasons that say only that a process ended."""

_NO_IMAGE: Final = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})

_TYPED: Final = re.compile(r"(?P<name>[A-Z][A-Za-z0-9]{1,255})[A-Za-z0-9]* \(\d+\): (?P<said>.*)", re.DOTALL)
"""The last line of a role that can't go on: its name and the reason."""

_MODEL: Final = "spec.model.path, and spec.model.volumeClaim or spec.model.init"
_FIELDS: Final = {
    "CheckpointMissing": _MODEL,
    "CheckpointBroken": _MODEL,
    "UnknownFamily": _MODEL,
    "OutOfDeviceMemory": "spec.engine.kvMemory",
    "InvalidArgument": "spec.engine: kvMemory, pageSize and the sizes",
    "InvalidConfig": "spec.engine and spec.podTemplate.env",
    "OOMKilled": "spec.resources.limits",
    "CreateContainerConfigError": "spec.podTemplate.env",
    "CreateContainerError": "spec.image and spec.podTemplate",
    "RunContainerError": "spec.image and spec.podTemplate",
    "StartError": "spec.image and spec.podTemplate",
}
"""The field of the pool that mends each trouble."""

_CLAIMS: Final = "spec.model.volumeClaim, spec.podTemplate.volumes and the claims that they name"
_PLACES: Final = (
    "spec.resources, spec.nodeSelector, spec.tolerations, spec.topologySpreadConstraints and spec.podTemplate.affinity"
)
_UNSTARTED: Final = (
    "its volumes, its network or its containers can't be made (see `kubectl describe pod`, spec.model.volumeClaim, "
    "spec.podTemplate.volumes, whether the Secrets and ConfigMaps that are named exist, and whether the memory of "
    "spec.resources.limits is enough to begin with)"
)
_OOM: Final = "the engine's process was killed: out of memory"
START_S: Final = 45.0
"""A node that takes longer to begin with a pod's containers, pulling apart, lacks something that the pod names."""

_OVER: Final = frozenset({"Failed", "Succeeded"})
"""Phases of pods that no longer run. A Deployment doesn't count them either, and makes others in their place."""

_OVER_FIELDS: Final = (
    ('emptydir volume "models"', "spec.model.init.sizeLimit"),
    ("emptydir volume", "spec.podTemplate.volumes"),
    ("preempt", "spec.podTemplate.priorityClassName"),
    ("node affinity", _PLACES),
    ("unexpectedadmission", "spec.resources"),
    ("evicted", "spec.resources"),
    ("outof", "spec.resources"),
)
"""Reasons of a kubelet that ended or refused a pod, and the field they come from; the first match counts."""

_AS_ROOT: Final = "runasnonroot"
_USER: Final = "whose USER must be a number other than 0"
_NOT_STARTED: Final = "see its log, whether it reaches control, and spec.startDeadlineSeconds"
_ENDED_BY_KUBELET: Final = (0, 137, 143)
"""Exit codes of an engine that a probe ended: it left by itself, or SIGKILL or SIGTERM ended it."""
_SAID_CHARS: Final = 1024
_REASON_CHARS: Final = 256
"""Most characters of a reason; others may have written it, and a condition bounds it."""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """The facts about a pod."""

    name: str
    ready: bool
    terminating: bool
    running: bool
    reason: str = ""  # the trouble's: CheckpointMissing, CrashLoopBackOff, ImagePullBackOff, Unschedulable, ...
    message: str = ""
    node: str = ""
    address: str = ""
    created: str = ""
    revision: str = ""  # the revision of the Deployment's template
    unstarted: bool = False  # a node has the pod and can't begin with its containers yet
    started: bool = False  # whether its engine has taken programs, or would have
    over: bool = False  # whether it has ended for good, though the pod is still there
    ended: str = ""  # when it ended, if it is over
    ends_at: float = 0.0  # when a pod that goes away is killed at the latest, Unix time, s

    @staticmethod
    def of(body: Mapping[str, Any], now: float = 0.0) -> PodFacts:
        """Read them from the pod's body, at a Unix time, s."""
        meta, status = body["metadata"], body.get("status") or {}
        conditions = {c["type"]: c for c in status.get("conditions") or ()}
        reason, message = _trouble(status, conditions)
        began = conditions.get("PodReadyToStartContainers", {})
        over = status.get("phase") in _OVER
        unstarted = began.get("status") == "False" and status.get("phase") == "Pending" and not reason
        if unstarted and now - parse(conditions["PodReadyToStartContainers"]["lastTransitionTime"]) >= START_S:
            reason, message = Reason.POD_UNSTARTED, _UNSTARTED
        return PodFacts(
            name=meta["name"],
            ready=conditions.get("Ready", {}).get("status") == "True",
            terminating="deletionTimestamp" in meta,
            running=status.get("phase") == "Running",
            reason=reason[:_REASON_CHARS],
            message=message,
            node=(body.get("spec") or {}).get("nodeName") or "",
            address=status.get("podIP") or "",
            created=meta.get("creationTimestamp") or "",
            revision=(meta.get("labels") or {}).get("pod-template-hash") or "",
            unstarted=unstarted,
            started=any(c.get("started") for c in status.get("containerStatuses") or ()),
            over=over,
            ended=_ended(meta, status) if over else "",
            ends_at=parse(meta["deletionTimestamp"]) if meta.get("deletionTimestamp") else 0.0,
        )


def in_trouble(pods: Sequence[PodFacts]) -> PodFacts | None:
    """Return a pod that is kept from running. Pods of an earlier spec don't count: the newer spec has answered them."""
    return next((p for p in _newest(pods) if p.reason and not p.over), None)


def ended_early(pods: Sequence[PodFacts], replicas: int) -> PodFacts | None:
    """Return the last pod that is over, while too few pods are ready and none made after its end has been ready."""
    newest = _newest(pods)
    living = [p for p in newest if not p.over]
    last = max((p for p in newest if p.over), key=lambda p: p.ended, default=None)
    if last is None or sum(p.ready for p in living) >= replicas:
        return None
    replaced = any((p.ready or p.started) and p.created >= last.ended for p in living)
    return None if replaced else last


def _newest(pods: Sequence[PodFacts]) -> list[PodFacts]:
    """Return the pods of the newest spec that stay."""
    staying = [p for p in pods if not p.terminating]
    newest = max(staying, key=lambda p: p.created, default=None)
    return [p for p in staying if newest and p.revision == newest.revision]


def _ended(meta: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """Return when a pod that is over ended, as near as its status says."""
    states = (c.get("state") or {} for c in status.get("containerStatuses") or ())
    times = [(s.get("terminated") or {}).get("finishedAt") for s in states]
    times += [c.get("lastTransitionTime") for c in status.get("conditions") or ()]
    return max(t or "" for t in (*times, meta.get("creationTimestamp")))


def _of_over(status: Mapping[str, Any]) -> tuple[str, str]:
    """Return reason and message of a pod that is over: the kubelet's, and the field that mends them."""
    reason = status.get("reason") or status["phase"]
    said = str(status.get("message") or "it runs no more").strip()[-_SAID_CHARS:]
    words = f"{reason} {said}".lower()
    field = next((field for word, field in _OVER_FIELDS if word in words), "")
    return reason, f"{said} (see {field})" if field else said


def _trouble(status: Mapping[str, Any], conditions: Mapping[str, Any]) -> tuple[str, str]:
    """Return reason and message of what keeps a pod from running, empty if nothing does."""
    if status.get("phase") in _OVER:
        return _of_over(status)
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False" and scheduled.get("reason"):
        said = str(scheduled.get("message", ""))
        return scheduled["reason"], f"{said} (see {_CLAIMS if 'persistentvolumeclaim' in said.lower() else _PLACES})"
    for key, init in (("initContainerStatuses", True), ("containerStatuses", False)):
        for container in status.get(key) or ():
            reason, message = _of_container(container, init=init)
            if reason:
                return reason, message
    return "", ""


def _of_container(container: Mapping[str, Any], *, init: bool) -> tuple[str, str]:
    """Return the same for one container. A failed one is in trouble until it has started, also while it is retried."""
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated") or {}
    failed = ended.get("exitCode", 0) != 0 if init else bool(ended) and not container.get("started")
    reason = waiting.get("reason", "")
    if reason in _QUIET:
        if not failed:
            return "", ""
        reason = ended.get("reason") or "Error"
    if reason in _NO_IMAGE:
        field = "spec.model.init.image" if init else "spec.image"
        return reason, f"{field}: {waiting.get('message') or reason}"
    if reason in _CRASHED:
        return _crash(reason, ended, waiting.get("message", ""), container.get("restartCount", 0), init=init)
    said = (ended.get("message") or waiting.get("message", "")).strip()[-_SAID_CHARS:]
    if reason == "OOMKilled":
        said = said or _OOM
    if _AS_ROOT in said.lower():
        return reason, f"{said} (see {'spec.model.init.image' if init else 'spec.image'}, {_USER})"
    if init:
        return reason, f"spec.model.init: {said}"
    return reason, f"{said} (see {_FIELDS[reason]})".strip() if reason in _FIELDS else said


def _sentence(line: str) -> str:
    text = " ".join(line.split())
    return text if text.endswith((".", ":", ";", ",")) else f"{text}."


def _crash(reason: str, ended: Mapping[str, Any], waits: str, restarts: int, *, init: bool) -> tuple[str, str]:
    """Return what a process said when it ended, under the name of its error if it gave one."""
    said = str(ended.get("message") or "").strip()
    why = f"exit status {ended.get('exitCode', 0)}" if ended else waits
    typed = _TYPED.match(said.rpartition("tartlet worker: ")[2])
    if init:
        reason, said = Reason.MODEL_INIT_FAILED, f"spec.model.init: {said[-_SAID_CHARS:]}"
    elif typed is not None:
        reason, said, why = typed["name"], " ".join(map(_sentence, filter(str.strip, typed["said"].splitlines()))), ""
    elif ended.get("reason") == "OOMKilled":
        reason, said = "OOMKilled", said or _OOM
    elif ended.get("exitCode") in _ENDED_BY_KUBELET:
        reason, said, why = Reason.ENGINE_NOT_STARTED, "it was ended before it took programs", _NOT_STARTED
    if reason in _FIELDS:
        why = f"see {_FIELDS[reason]}"
    behind = "; ".join(filter(None, (why, f"restarted {restarts} times" if restarts else "")))
    return reason, f"{said[-_SAID_CHARS:]} ({behind})".strip() if behind else said[-_SAID_CHARS:]
