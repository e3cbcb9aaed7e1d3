"""Every reason that a condition or an event may carry; the reference page lists them."""

from __future__ import annotations

from enum import StrEnum

from tartlet_common.errors.registry import TartletError, Unavailable


class Reason(StrEnum):
    """Reasons of conditions. Reasons of pods and names of errors are passed on beside them."""

    # EnginePool
    ENGINES_READY = "EnginesReady"
    SCALED_TO_ZERO = "ScaledToZero"
    ROLLING_OUT = "RollingOut"
    ROLLOUT_STUCK = "RolloutStuck"
    SETTLED = "Settled"
    ENGINES_MISSING = "EnginesMissing"
    ENGINE_LOST = "EngineLost"
    ENGINE_NOT_STARTED = "EngineNotStarted"
    ENGINE_STANDS_BY = "EngineStandsBy"
    MODEL_INIT_FAILED = "ModelInitFailed"
    PODS_REFUSED = "PodsRefused"
    POD_UNSTARTED = "PodUnstarted"
    ADAPTERS_REFUSED = "AdaptersRefused"
    AS_EXPECTED = "AsExpected"
    CONTROL_UNREACHABLE = "ControlUnreachable"
    DELETING = "Deleting"
    DRAINING = "Draining"
    # Inferlet
    CATALOGUED = "Catalogued"
    SOURCE_MISSING = "SourceMissing"
    HOST_NOT_ALLOWED = "HostNotAllowed"
    ADDRESS_NOT_ALLOWED = "AddressNotAllowed"
    FETCH_FAILED = "FetchFailed"
    DIGEST_MISMATCH = "DigestMismatch"
    POOL_READY = "PoolReady"
    POOL_NOT_FOUND = "PoolNotFound"
    POOL_NOT_READY = "PoolNotReady"
    MODEL_NOT_NAMED = "ModelNotNamed"
    # InferletRun
    INFERLET_NOT_FOUND = "InferletNotFound"
    INFERLET_NOT_READY = "InferletNotReady"
    INFERLET_NOT_RUNNABLE = "InferletNotRunnable"
    LAUNCHED = "Launched"
    RUNTIME_UNREACHABLE = "RuntimeUnreachable"
    RECOVERING = "Recovering"
    NOT_FINISHED = "NotFinished"
    TOO_MANY_RUNS = "TooManyRuns"
    BACK_OFF = "BackOff"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    # all kinds
    RECONCILE_FAILED = "ReconcileFailed"


class EventReason(StrEnum):
    """Reasons of the events that the operator posts."""

    POOL_READY = "PoolReady"
    POOL_DEGRADED = "PoolDegraded"
    POOL_REFUSED = "PoolRefused"
    POOL_SCALED = "PoolScaled"
    ROLLOUT_STARTED = "RolloutStarted"
    ENGINE_DRAINING = "EngineDraining"
    ENGINE_DRAINED = "EngineDrained"
    INFERLET_READY = "InferletReady"
    INFERLET_REFUSED = "InferletRefused"
    CATALOGUE_REBUILT = "CatalogueRebuilt"
    RUN_LAUNCHED = "RunLaunched"
    RUN_SUCCEEDED = "RunSucceeded"
    RUN_FAILED = "RunFailed"
    RUN_RETRIED = "RunRetried"
    RECONCILE_FAILED = "ReconcileFailed"


MEANING: dict[Reason, str] = {
    Reason.ENGINES_READY: "As many engines as asked for take programs.",
    Reason.SCALED_TO_ZERO: "No engine is asked for, so no program can run on the pool.",
    Reason.ROLLING_OUT: "Pods of the newest spec are being started.",
    Reason.ROLLOUT_STUCK: "Pods of the newest spec can't start; engines of the earlier spec go on serving.",
    Reason.SETTLED: "Every pod is of the newest spec.",
    Reason.ENGINES_MISSING: "Fewer engines than asked for take programs.",
    Reason.ENGINE_LOST: "A pod runs, and control doesn't know its engine.",
    Reason.ENGINE_NOT_STARTED: "An engine took no programs within `spec.startDeadlineSeconds`, or was ended before.",
    Reason.ENGINE_STANDS_BY: "Engines of another pool serve this model, with another checkpoint, dtype or page size.",
    Reason.MODEL_INIT_FAILED: "The container of `spec.model.init` failed.",
    Reason.PODS_REFUSED: "The API server refuses the pods: pod security, a quota, or a name that doesn't exist.",
    Reason.POD_UNSTARTED: "A node can't start a pod: something it names is missing, or its memory limit is too small.",
    Reason.ADAPTERS_REFUSED: "An engine can't have an adapter that the pool lists; it serves the others.",
    Reason.AS_EXPECTED: "Nothing is wrong.",
    Reason.CONTROL_UNREACHABLE: "Control doesn't answer: the state of engines is unknown, and no run is launched.",
    Reason.DELETING: "The pool was deleted, and its pods have gone.",
    Reason.DRAINING: "The pool was deleted; it goes when its engines have drained.",
    Reason.CATALOGUED: "The source was validated and is in the catalogue.",
    Reason.SOURCE_MISSING: "The ConfigMap or its key doesn't exist.",
    Reason.HOST_NOT_ALLOWED: "The operator may not fetch from the URL's host.",
    Reason.ADDRESS_NOT_ALLOWED: "The URL's host has a private or reserved address, which no administrator has named.",
    Reason.FETCH_FAILED: "The URL could not be fetched.",
    Reason.DIGEST_MISMATCH: "The fetched file has another digest.",
    Reason.POOL_READY: "A pool that is ready serves the model.",
    Reason.POOL_NOT_FOUND: "No pool of the namespace serves the model.",
    Reason.POOL_NOT_READY: "The pools that serve the model have no engine ready.",
    Reason.MODEL_NOT_NAMED: "The program names no model, and the namespace has no pool; its runs are launched.",
    Reason.INFERLET_NOT_FOUND: "There is no Inferlet of that name in the namespace.",
    Reason.INFERLET_NOT_READY: "The Inferlet isn't ready; its conditions say why.",
    Reason.INFERLET_NOT_RUNNABLE: "No engine of the Inferlet's pool or model takes programs; the run waits for one.",
    Reason.LAUNCHED: "The program runs.",
    Reason.RUNTIME_UNREACHABLE: "The program's runtime doesn't answer; the program may run, or be lost with it.",
    Reason.RECOVERING: "The program stands still until a part of the release that it uses is back.",
    Reason.NOT_FINISHED: "The run goes on.",
    Reason.TOO_MANY_RUNS: "The operator follows as many runs as max_runs allows; this one waits until one ends.",
    Reason.BACK_OFF: "A launch failed; the next one waits.",
    Reason.SUCCEEDED: "The program ended well.",
    Reason.FAILED: "The program failed, and no retry is left.",
    Reason.RECONCILE_FAILED: "The operator failed repeatedly, or the API server refuses its objects; it tries again at"
    " the next resync.",
}
"""What each reason of a condition means, for the reference page."""

EVENT_MEANING: dict[EventReason, str] = {
    EventReason.POOL_READY: "The pool became ready.",
    EventReason.POOL_DEGRADED: "The pool lost engines, or can't start them.",
    EventReason.POOL_REFUSED: "A pool of the release's values can't be made; the event is of the release's ConfigMap.",
    EventReason.POOL_SCALED: "The operator changed `spec.replicas`, as `spec.autoscaling` says.",
    EventReason.ROLLOUT_STARTED: "A new spec is being rolled out.",
    EventReason.ENGINE_DRAINING: "An engine waits for its programs before it goes.",
    EventReason.ENGINE_DRAINED: "An engine has gone after draining.",
    EventReason.INFERLET_READY: "An Inferlet that was not ready, or a new version of it, is in the catalogue.",
    EventReason.INFERLET_REFUSED: "The Inferlet's source is missing or invalid.",
    EventReason.CATALOGUE_REBUILT: "Control had lost the Inferlet's entry; the operator put it back.",
    EventReason.RUN_LAUNCHED: "A program was launched.",
    EventReason.RUN_SUCCEEDED: "The run succeeded.",
    EventReason.RUN_FAILED: "The run failed.",
    EventReason.RUN_RETRIED: "A launch failed, and is tried again.",
    EventReason.RECONCILE_FAILED: "The operator failed to bring an object about, or the API server refuses it.",
}
"""What each reason of an event means, for the reference page."""


_BRIEF_CHARS = 1024


def brief(error: TartletError) -> str:
    r"""Return an error in one line, with the exception that a program raised, and without its traceback.

    Example:
        >>> from tartlet_common.errors.registry import ProgramFailed
        >>> brief(ProgramFailed(traceback="Traceback:\n  line 4\nKeyError: 'a'\n"))
        "the program raised an exception: KeyError: 'a'"
    """
    traceback = str(error.fields.get("traceback", "")).strip()
    first = str(error).splitlines()[0] if str(error) else ""
    said = f"{first}: {_exception(traceback)}" if traceback else " ".join(str(error).split())
    return said[:_BRIEF_CHARS]


def _exception(traceback: str) -> str:
    r"""Return the line of a traceback that names the exception: the first one after the frames of the last part.

    Frames are indented and begin with `Traceback`; an exception's text may have further lines. The lines of an
    exception group have a bar in front.

    Example:
        >>> _exception("Traceback (most recent call last):\n  File\nValueError: one\ntwo")
        'ValueError: one'
        >>> _exception("  + Exception Group Traceback (most recent call last):\n  |   File\n  | Group: x\n  +--")
        'Group: x'
    """
    lines = traceback.splitlines()
    if "Exception Group Traceback" in lines[0]:
        lines = ["Traceback", *(line.strip().removeprefix("| ") for line in lines[1:])]
    begins = [n for n, line in enumerate(lines) if line.startswith("Traceback")]
    last = lines[begins[-1] + 1 :] if begins else []
    named = next((line for line in last if line[:1].strip()), lines[-1])
    return named.strip()


def explained(error: TartletError) -> str:
    """Return an error's text for a condition, with a remedy for clusters."""
    if isinstance(error, Unavailable):
        return f"{error}: see whether its pods run (`kubectl get pods`), and their logs"
    return error.explained_in_line
