"""An EnginePool's status, from its Deployment, its pods and control's engines. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tartlet_operator.api.conditions import Want, find, holds, merged, truth
from tartlet_operator.api.engine_pool import EnginePoolStatus, EngineStatus
from tartlet_operator.api.events import ObjectEvent
from tartlet_operator.api.meta import pool_selector
from tartlet_operator.api.reasons import EventReason, Reason
from tartlet_operator.pools.pod_facts import PodFacts, ended_early, in_trouble

_REFUSED: Final = "correct what it names in spec.podTemplate or spec.resources, or what the namespace allows"
_ADAPTERS: Final = "correct spec.model.adapters, or the directories in the model's volume; the others are served"
_CLAIM: Final = "persistentvolumeclaim"
"""The word by which a pod that waits for a claim differs from one that waits for room."""
_SAID_CHARS: Final = 2048
_ENGINES: Final = 1000
"""Most engines that a status lists; while pods are replaced there may be more."""
_STANDS_BY: Final = (
    "pod {} waits for engines of {} that serve spec.model.name in another form (checkpoint, spec.engine.dtype or "
    "spec.engine.pageSize): give one of them another name"
)
_UNREACHABLE: Final = (
    "control doesn't answer, so nobody knows which engines take programs: see whether control's pod runs, its log, and "
    "the operator's"
)
_LOST: Final = "control doesn't know the engine of pod {}: see the pod's log, and whether it reaches control"
_UNREADY: Final = "pod {} is {}: see its log and `kubectl describe pod`"
_DELETED: Final = "it was deleted, and goes when its engines have drained"
DRAIN_LOOK_S: Final = 5.0
"""How often the status of a deleted pool is written while its engines drain."""
_NO_ROOM: Final = "a rollout needs room for one more pod: make room, or scale the pool down first"
_NO_ENGINE: Final = "spec.replicas is 0"
_WANTED: Final = "spec.replicas is 0, and runs wait for an engine: raise it (`kubectl scale enginepool`)"
_COMING: Final = "spec.replicas is 0, and runs wait for an engine: the operator raises it (spec.autoscaling)"
_BEFORE_LOADED: Final = frozenset({"", "Pending", "Loading", "Broken"})
"""States of an engine that has not served yet."""
_UNMADE: Final = "pods are missing: see `kubectl describe` of the pool's Deployment and its ReplicaSet"


@dataclass(frozen=True, slots=True)
class DeploymentFacts:
    """The facts about the pool's Deployment."""

    generation: int
    observed_generation: int
    replicas: int
    updated: int
    refused: str = ""  # why no pods can be made
    current: bool = True  # whether it is what the pool's spec asks for; else the API server refused that

    @staticmethod
    def of(body: Mapping[str, Any], *, current: bool = True) -> DeploymentFacts:
        """Read them from the Deployment's body, empty if there is none."""
        meta, status = body.get("metadata") or {}, body.get("status") or {}
        failures = (c for c in status.get("conditions") or () if (c["type"], c["status"]) == ("ReplicaFailure", "True"))
        return DeploymentFacts(
            int(meta.get("generation", 0)),
            int(status.get("observedGeneration", 0)),
            int(status.get("replicas", 0)),
            int(status.get("updatedReplicas", 0)),
            next((str(c.get("message") or c.get("reason") or "FailedCreate") for c in failures), ""),
            current,
        )


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """Everything that a pool's status depends on.

    Args:
        generation: of the pool.
        replicas: that its spec asks for.
        deployment: after it was applied, or as it was where that was refused.
        pods: the pool's, those that go away or are over too.
        engines: state by id (a pod's name) as control tells; None: control doesn't answer.
        programs: how many each engine has, as control told last.
        adapters_refused: the adapters that an engine can't have, with the reasons, as control told last.
        own: ids of the pool's engines, as `own` tells: other engines may have names like theirs.
        refused: what the API server says against an object that the spec asks for.
        deleting: it was deleted, and is there until its pods have gone.
        wanted: runs wait for an engine of it.
        scaled: the operator scales it on its work.
        now: Unix time, s.
        rivals: the namespace's other pools of the same model, as NAMESPACE/POOL with commas.
    """

    name: str
    generation: int
    replicas: int
    deployment: DeploymentFacts
    pods: Sequence[PodFacts]
    engines: Mapping[str, str] | None
    programs: Mapping[str, int] = field(default_factory=dict)
    adapters_refused: Mapping[str, str] = field(default_factory=dict)
    own: Collection[str] = ()
    refused: str = ""
    deleting: bool = False
    wanted: bool = False
    scaled: bool = False
    now: float = 0.0
    rivals: str = ""

    @property
    def living(self) -> list[PodFacts]:
        """The pods that aren't over; only these are counted."""
        return [p for p in self.pods if not p.over]


def own(
    before: Collection[str], old: EnginePoolStatus, pods: Sequence[PodFacts], engines: Mapping[str, str] | None
) -> frozenset[str]:
    """Return the ids of a pool's engines: its pods', and those that control reports after their pods have gone."""
    known = {*before, *(e.pod for e in old.engines)}
    return frozenset({p.name for p in pods} | (known if engines is None else known & engines.keys()))


def status(facts: PoolFacts, old: EnginePoolStatus, now: str) -> EnginePoolStatus:
    """Return the pool's status.

    `Ready` is True only when the Deployment has seen its newest spec, every pod is of it, and as many engines as asked
    for take programs; so it is never True for an older generation, nor during a rollout. A pool of 0 replicas is as
    its spec asks, and so Ready, unless runs wait for it. `Available` is True while any engine takes programs.
    """
    before = {e.pod: e.state for e in old.engines}
    engines = [_engine(p, facts, before.get(p.name, "")) for p in sorted(facts.living, key=lambda p: p.name)]
    wants = _conditions(facts, old, engines)
    return EnginePoolStatus(
        observed_generation=facts.generation,
        conditions=merged(old.conditions, wants, generation=facts.generation, now=now),
        replicas=sum(not p.terminating for p in facts.living),
        ready_replicas=_ready(engines),
        updated_replicas=facts.deployment.updated if _observed(facts.deployment) else 0,
        draining_replicas=sum(e.state == "Draining" for e in engines),
        selector=",".join(f"{k}={v}" for k, v in pool_selector(facts.name).items()),
        engines=engines[:_ENGINES],
    )


def events(old: EnginePoolStatus, new: EnginePoolStatus, *, same_pods: bool = False) -> list[ObjectEvent]:
    """Return the events between two statuses; `same_pods`: the spec only changed the number of pods."""
    out: list[ObjectEvent] = []
    if holds(new.conditions, "Ready") and not holds(old.conditions, "Ready"):
        out.append(ObjectEvent(EventReason.POOL_READY, f"engines that take programs: {new.ready_replicas}"))
    progressing = find(new.conditions, "Progressing")
    if _under_way(new) and not _under_way(old) and not same_pods:
        out.append(ObjectEvent(EventReason.ROLLOUT_STARTED, progressing.message if progressing else ""))
    degraded = find(new.conditions, "Degraded")
    if degraded is not None and degraded.status == "True":
        was = find(old.conditions, "Degraded")
        if degraded.reason == Reason.RECONCILE_FAILED:
            if was is None or was.reason != degraded.reason:
                out.append(ObjectEvent(EventReason.RECONCILE_FAILED, degraded.message, warning=True))
        elif was is None or was.status != "True":
            out.append(ObjectEvent(EventReason.POOL_DEGRADED, f"{degraded.reason}: {degraded.message}", warning=True))
    before = {e.pod: e.state for e in old.engines}
    after = {e.pod: e.state for e in new.engines}
    for pod, state in after.items():
        if state == "Draining" and before.get(pod) != "Draining":
            out.append(ObjectEvent(EventReason.ENGINE_DRAINING, f"{pod} waits for its programs"))
    for pod, state in before.items():
        if state == "Draining" and pod not in after:
            out.append(ObjectEvent(EventReason.ENGINE_DRAINED, f"{pod} has gone"))
    return out


def _under_way(status: EnginePoolStatus) -> bool:
    """Whether a rollout goes on, or is stuck."""
    found = find(status.conditions, "Progressing")
    return found is not None and found.reason in (Reason.ROLLING_OUT, Reason.ROLLOUT_STUCK)


def _ready(engines: Sequence[EngineStatus]) -> int:
    return sum(e.state == "Ready" for e in engines)


def _observed(deployment: DeploymentFacts) -> bool:
    """Whether the Deployment's counts are of the pool's newest spec."""
    return deployment.current and deployment.observed_generation >= deployment.generation


def _conditions(facts: PoolFacts, old: EnginePoolStatus, engines: Sequence[EngineStatus]) -> list[Want]:
    d, ready = facts.deployment, _ready(engines)
    counts = f"{ready} of {facts.replicas} engines take programs"
    if facts.deleting:
        return _going(facts, engines)
    rolled = _observed(d) and d.updated == facts.replicas == d.replicas
    enough = ready >= facts.replicas
    before = find(old.conditions, "Progressing")
    # once a generation was rolled out, missing engines are trouble and no longer progress
    settled_before = (
        before is not None and before.reason == Reason.SETTLED and before.observed_generation == facts.generation
    )
    starting = not enough and not settled_before and not _standing_by(facts)
    lost = settled_before and _observed(d) and d.updated == d.replicas < facts.replicas  # not replaced yet
    progressing = d.current and (not (rolled or lost) or starting)
    trouble = _trouble(facts)
    reason, message = _why(facts, engines, trouble, counts, progressing=progressing)
    known = facts.engines is not None or facts.replicas == 0 or bool(facts.refused)
    short = not known or (not enough and not progressing)
    degraded = trouble is not None or short
    bad = _bad_adapters(facts)
    as_asked = rolled and enough and not facts.refused and not (facts.replicas == 0 and facts.wanted)
    return [
        Want("Ready", truth(value=as_asked) if known else "Unknown", reason, message),
        _available(facts, ready, counts, reason, message),
        _progress(facts, trouble, counts) if progressing else _no_rollout(d),
        Want("Degraded", "True", Reason.ADAPTERS_REFUSED, bad)
        if bad and not degraded
        else Want(
            "Degraded",
            truth(value=degraded) if known or trouble else "Unknown",
            reason if degraded else Reason.AS_EXPECTED,
            message if degraded else "",
        ),
    ]


def _bad_adapters(facts: PoolFacts) -> str:
    """Return which adapters of the spec a pod's engine can't have, and why; "" if none is refused."""
    said = ((p.name, facts.adapters_refused.get(p.name)) for p in facts.living if not p.terminating)
    return next((f"pod {pod} refuses adapters: {why[:_SAID_CHARS]}; {_ADAPTERS}" for pod, why in said if why), "")


def _available(facts: PoolFacts, ready: int, counts: str, reason: str, message: str) -> Want:
    """Return whether programs can run on the pool; `reason` and `message` are those of `Ready`."""
    if ready:
        return Want("Available", "True", Reason.ENGINES_READY, counts)
    if facts.replicas == 0:
        return Want("Available", "False", Reason.SCALED_TO_ZERO, _NO_ENGINE)
    if facts.engines is None:
        return Want("Available", "Unknown", Reason.CONTROL_UNREACHABLE, _UNREACHABLE)
    return Want("Available", "False", reason, message)


def _progress(facts: PoolFacts, trouble: tuple[str, str] | None, counts: str) -> Want:
    """Return the condition of a rollout under way: it progresses unless its pods can't start."""
    if trouble is not None and not facts.refused:
        return Want("Progressing", "False", Reason.ROLLOUT_STUCK, f"{trouble[0]}: {trouble[1]}")
    updated = facts.deployment.updated if _observed(facts.deployment) else 0
    message = f"{updated} of {facts.replicas} pods are of the newest spec, {counts}"
    return Want("Progressing", "True", Reason.ROLLING_OUT, message)


def _no_rollout(deployment: DeploymentFacts) -> Want:
    return Want("Progressing", "False", Reason.SETTLED if deployment.current else Reason.RECONCILE_FAILED)


def _going(facts: PoolFacts, engines: Sequence[EngineStatus]) -> list[Want]:
    """Return the conditions of a deleted pool: nothing is made any more, so nothing can be wrong."""
    reason = Reason.DRAINING if engines else Reason.DELETING
    message = f"{_DELETED}{_left(facts, engines)}" if engines else _DELETED
    return [
        Want("Ready", "False", reason, message),
        Want("Available", "False", reason, message),
        Want("Progressing", "False", reason),
        Want("Degraded", "False", Reason.AS_EXPECTED),
    ]


def _left(facts: PoolFacts, engines: Sequence[EngineStatus]) -> str:
    """Return how many programs drain, and for how many more seconds at most, in steps of `DRAIN_LOOK_S`."""
    left_s = max((p.ends_at for p in facts.living), default=0.0) - facts.now
    steps = max(math.ceil(left_s / DRAIN_LOOK_S), 0)
    seconds = f", at most {steps * DRAIN_LOOK_S:g} s more" if left_s > 0 else ""
    if facts.engines is None:
        return f"; engines left: {len(engines)}{seconds} (control doesn't answer)"
    return f"; programs left: {sum(e.programs for e in engines)} on {len(engines)} engines{seconds}"


def _trouble(facts: PoolFacts) -> tuple[str, str] | None:
    """Return reason and message of what keeps pods from being made or from running, or the spec from being applied."""
    if facts.refused:
        return Reason.RECONCILE_FAILED, facts.refused
    pod, refused = in_trouble(facts.pods), facts.deployment.refused
    if pod is None and refused:
        return Reason.PODS_REFUSED, f"{refused[-_SAID_CHARS:]} ({_REFUSED})"
    pod = pod or ended_early(facts.pods, facts.replicas)
    if pod is None:
        return None
    said = f"pod {pod.name}: {pod.message or pod.reason}"
    surplus = sum(not p.terminating for p in facts.living) > facts.replicas
    no_room = pod.reason == "Unschedulable" and _CLAIM not in pod.message.lower() and surplus
    return pod.reason, f"{said}; {_NO_ROOM}" if no_room else said


def _why(
    facts: PoolFacts,
    engines: Sequence[EngineStatus],
    trouble: tuple[str, str] | None,
    counts: str,
    *,
    progressing: bool,
) -> tuple[str, str]:
    """Return reason and message of `Ready`; what keeps pods from running comes first."""
    if trouble is not None:
        return trouble[0], f"{trouble[1]}; {counts}"
    if facts.engines is None and facts.replicas:
        return Reason.CONTROL_UNREACHABLE, _UNREACHABLE
    if progressing:
        return Reason.ROLLING_OUT, counts
    if facts.replicas == 0:
        return Reason.SCALED_TO_ZERO, (_COMING if facts.scaled else _WANTED) if facts.wanted else _NO_ENGINE
    if _ready(engines) >= facts.replicas:
        return Reason.ENGINES_READY, counts
    standby = _standing_by(facts)
    if standby:
        told = _STANDS_BY.format(standby, facts.rivals or "another pool of the namespace")
        return Reason.ENGINE_STANDS_BY, f"{told}; {counts}"
    if lost := next((e.pod for e in engines if e.state == "Lost"), ""):
        return Reason.ENGINE_LOST, f"{_LOST.format(lost)}; {counts}"
    unready = next((e for e in engines if e.state not in ("Ready", "Draining")), None)
    hint = _UNREADY.format(unready.pod, unready.state) if unready else _UNMADE
    return Reason.ENGINES_MISSING, f"{hint}; {counts}"


def _standing_by(facts: PoolFacts) -> str:
    """Return a pod whose engine stands by for another pool's engines, else ""."""
    engines, staying = facts.engines or {}, {p.name for p in facts.living if not p.terminating}
    if any(name in facts.own and name not in staying for name in engines):
        return ""
    return next((name for name in sorted(staying) if engines.get(name) == "standby"), "")


def _engine(pod: PodFacts, facts: PoolFacts, before: str) -> EngineStatus:
    return EngineStatus(
        pod=pod.name,
        state=_state(pod, facts.engines, before),
        reason=pod.reason[:256],
        programs=facts.programs.get(pod.name, 0),
        node=pod.node,
        address=pod.address,
    )


def _state(pod: PodFacts, engines: Mapping[str, str] | None, before: str) -> str:
    if pod.terminating:
        return "Draining"
    loaded = pod.started and before not in _BEFORE_LOADED
    unready = "Joining" if loaded else "Loading"
    match engines.get(pod.name, "") if engines is not None else "":
        case "ready":
            return "Ready" if pod.ready else unready
        case "standby":
            return "Standby" if pod.ready else unready
        case "draining" | "cordoned":
            return "Draining"
    if pod.ready or (loaded and pod.running and not pod.reason):  # it has loaded, whatever its probe says now
        return "Lost" if engines is not None else "Unknown"
    if not pod.running:
        return "Pending"
    return "Broken" if pod.reason else "Loading"
