"""An Inferlet's status: whether and where the program can run, and why not. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from tartlet_operator.api.conditions import Status, Want, holds, merged
from tartlet_operator.api.events import ObjectEvent
from tartlet_operator.api.inferlet import InferletSpec, InferletStatus
from tartlet_operator.api.reasons import EventReason, Reason
from tartlet_operator.machinery.store import PoolSeen

_NOT_READY: Final = "InferletRuns wait until it is Ready: see that condition"
_NO_POOL: Final = (
    "it names neither model nor pool, so its runs are launched; those that use an engine need an EnginePool, and the "
    "namespace has none"
)
_UNREACHABLE: Final = (
    "control doesn't answer, so nobody knows whether an engine takes programs: see the pools' conditions"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the program is in the catalogue, and if not, why."""

    ready: Status
    reason: str
    message: str = ""
    digest: str = ""  # digest of the version in the catalogue


def model_of(spec: InferletSpec, pools: Iterable[PoolSeen]) -> str | None:
    """Return the model a program runs on, "" for the server's default; None: its pool doesn't exist."""
    if not spec.pool:
        return spec.model
    return next((p.model for p in pools if p.name == spec.pool), None)


def runnable(
    spec: InferletSpec, pools: Iterable[PoolSeen], verdict: Verdict, shared: Sequence[str] = ()
) -> tuple[Want, list[str]]:
    """Return the condition `Runnable`, and the namespace's pools that can run the program now.

    `shared`: ready pools, as NAMESPACE/POOL, that serve the program's model and that control's settings share.
    """
    pools = list(pools)
    model = model_of(spec, pools)
    if model is None:
        message = f"spec.pool names {spec.pool}, which isn't in the namespace: create it, or name another pool"
        return Want("Runnable", "False", Reason.POOL_NOT_FOUND, message), []
    serving = [p for p in pools if not model or p.model == model]
    ready = sorted(p.name for p in serving if p.ready)
    if ready and verdict.ready != "True":
        message = _NOT_READY
        if verdict.digest:
            message += "; clients that launch it by name get its last valid version"
        return Want("Runnable", "False", Reason.INFERLET_NOT_READY, message), []
    if ready:
        return Want("Runnable", "True", Reason.POOL_READY, ""), ready[:64]
    if any(p.unknown for p in serving):
        return Want("Runnable", "Unknown", Reason.CONTROL_UNREACHABLE, _UNREACHABLE), []
    if serving:
        message = f"no engine is ready in {', '.join(sorted(p.name for p in serving)[:8])}: see its conditions"
        return Want("Runnable", "False", Reason.POOL_NOT_READY, message), []
    return _without_pools(model, verdict, shared), []


def _without_pools(model: str, verdict: Verdict, shared: Sequence[str]) -> Want:
    """Return `Runnable` where the namespace has no pool for the program."""
    if model and not shared:
        message = f"no EnginePool of the namespace serves the model {model}: create one, or name another model"
        return Want("Runnable", "False", Reason.POOL_NOT_FOUND, message)
    if verdict.ready != "True":
        return Want("Runnable", "False", Reason.INFERLET_NOT_READY, _NOT_READY)
    if model:
        message = f"engines of {', '.join(shared[:8])} serve it, which control's settings share"
        return Want("Runnable", "True", Reason.POOL_READY, message)
    return Want("Runnable", "True", Reason.MODEL_NOT_NAMED, _NO_POOL)


def status(
    spec: InferletSpec,
    old: InferletStatus,
    verdict: Verdict,
    pools: Iterable[PoolSeen],
    *,
    generation: int,
    now: str,
    shared: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> InferletStatus:
    """Return the Inferlet's status; `shared` maps models to the pools that control's settings share."""
    pools = list(pools)
    where, names = runnable(spec, pools, verdict, shared.get(model_of(spec, pools) or "", ()))
    ready = Want("Ready", verdict.ready, verdict.reason, verdict.message)
    return InferletStatus(
        observed_generation=generation,
        conditions=merged(old.conditions, [ready, where], generation=generation, now=now),
        digest=f"sha256:{verdict.digest}" if verdict.digest else "",
        model=model_of(spec, pools) or "",
        pools=names,
    )


def events(old: InferletStatus, new: InferletStatus) -> list[ObjectEvent]:
    """Return the events between two statuses."""
    ready = next((c for c in new.conditions if c.type == "Ready"), None)
    if ready is None or old.conditions == new.conditions:
        return []
    if ready.status == "True":
        # no event for an Inferlet that is Ready from the start: ten thousand would double the writes
        mended = bool(old.conditions) and (not holds(old.conditions, "Ready") or old.digest != new.digest)
        return [ObjectEvent(EventReason.INFERLET_READY, f"in the catalogue as {new.digest}")] if mended else []
    before = next((c for c in old.conditions if c.type == "Ready"), None)
    if ready.status == "False" and (before is None or before.message != ready.message):
        return [ObjectEvent(EventReason.INFERLET_REFUSED, f"{ready.reason}: {ready.message}", warning=True)]
    return []
