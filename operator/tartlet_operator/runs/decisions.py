"""What to do next about an InferletRun, and what its status says then. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tartlet_common.errors.registry import DeadlineExceeded, TartletError
from tartlet_operator.api.conditions import Want, find, merged
from tartlet_operator.api.inferlet_run import (
    TRACEBACK_CHARS,
    InferletRunSpec,
    InferletRunStatus,
    RunError,
    Tokens,
)
from tartlet_operator.api.reasons import Reason
from tartlet_operator.api.times import parse, stamp
from tartlet_operator.machinery.program_output import Outcome, Output, tail

BACKOFF_S: Final = 1.0
BACKOFF_MAX_S: Final = 60.0
_KEY_PREFIX: Final = "inferletrun-"
_WAITED_REMEDY: Final = "Mend what it waited for, or raise spec.deadlineSeconds; then create another InferletRun."
_FAILED_REMEDY: Final = (
    "Mend the program, or raise spec.deadlineSeconds until its retries fit in; then create another InferletRun."
)
LATE_S: Final = 5.0
"""So long after its deadline, and so long listened to, a program is ended here: its runtime keeps the deadline itself.

It may have ended in time while nobody looked; and the time at which it started is known to the second.
"""
RECHECK_S: Final = 10.0
"""How often something waited for is looked at, beside the events that tell."""
_FIRST_PAUSE_S: Final = 2.0
_LAST_PAUSE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class InferletFacts:
    """What is known of the Inferlet that a run names."""

    found: bool
    ready: bool = False
    message: str = ""
    held: str = ""  # why no engine can run it, where one has to


def pause_s(waited_s: float) -> float:
    """When a launch that is refused for now is tried again, after it has waited so long.

    Example:
        >>> [pause_s(waited_s) for waited_s in (0.0, 20.0, 3600.0)]
        [2.0, 5.0, 30.0]
    """
    return min(max(waited_s / 4, _FIRST_PAUSE_S), _LAST_PAUSE_S)


# ---- what to do -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing yet; look again after `seconds`."""

    seconds: float
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch attempt number `attempt`; it may take `deadline_s`."""

    attempt: int
    key: str
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Follow:
    """Follow the program that runs; look again after `seconds` at the latest."""

    program_id: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Finish:
    """The run ends so."""

    outcome: Outcome
    kill: bool = False  # the program still runs
    waited: str = ""  # for what, all the time that was left


@dataclass(frozen=True, slots=True)
class Retry:
    """The attempt failed; another one follows after `seconds`."""

    outcome: Outcome
    seconds: float


@dataclass(frozen=True, slots=True)
class Delete:
    """Its time after the end is over."""


@dataclass(frozen=True, slots=True)
class Rest:
    """It has ended; look again after `seconds`, None: never."""

    seconds: float | None


Action = Wait | Launch | Follow | Finish | Retry | Delete | Rest


def launch_key(uid: str, attempt: int) -> str:
    """The idempotency key of a run's attempt; nobody else's begins so.

    Example:
        >>> uid = "0b3a9c1e-5d53-4c0e-9a57-1f0f2f1b7a11"
        >>> launched_by(launch_key(uid, 2)) == (uid, 2)
        True
    """
    return f"{_KEY_PREFIX}{uid}-{attempt}"


def launched_by(key: str) -> tuple[str, int] | None:
    """The UID and the attempt that an idempotency key is of; None: no operator made it.

    Example:
        >>> launched_by("0b3a9c1e-5d53-4c0e-9a57-1f0f2f1b7a11-1") is None
        True
    """
    uid, _, attempt = key.removeprefix(_KEY_PREFIX).rpartition("-")
    if not key.startswith(_KEY_PREFIX) or not uid or not (attempt.isascii() and attempt.isdecimal()):
        return None
    return uid, int(attempt)


def backoff_s(attempts: int) -> float:
    """The wait after so many failed attempts.

    Example:
        >>> [backoff_s(n) for n in (1, 2, 3, 20)]
        [1.0, 2.0, 4.0, 60.0]
    """
    return float(min(BACKOFF_S * 2 ** (min(attempts, 16) - 1), BACKOFF_MAX_S))


def decide(
    spec: InferletRunSpec,
    status: InferletRunStatus,
    *,
    uid: str,
    now: float,
    inferlet: InferletFacts,
    outcome: Outcome | None,
    followed_s: float = 0.0,
) -> Action:
    """The next thing to do about a run.

    Args:
        spec: of the run.
        status: as it was written last.
        uid: of the object.
        now: Unix time, s.
        inferlet: what is known of the one it names.
        outcome: how the current attempt ended, if it has.
        followed_s: since when it has been listened to.
    """
    if status.phase in ("Succeeded", "Failed"):
        return _after_end(spec, status, now)
    left_s = (parse(status.start_time) if status.start_time else now) + spec.deadline_seconds - now
    running = status.phase == "Running"
    late = DeadlineExceeded(deadline_s=spec.deadline_seconds)
    if outcome is not None and running:
        if isinstance(outcome.error, DeadlineExceeded):  # its own speaks of what was left to the attempt
            return Finish(replace(outcome, error=late))
        if outcome.success or status.attempts > spec.retries:
            return Finish(outcome)
        return Retry(outcome, backoff_s(status.attempts))
    if running and status.program_id and (left_s > -LATE_S or followed_s < LATE_S):
        return Follow(status.program_id, max(left_s, 0.0) + LATE_S)
    if left_s <= 0:
        return Finish(Outcome(success=False, error=late), kill=running, waited="" if running else _waits_for(status))
    return _before_launch(spec, status, uid=uid, now=now, left_s=left_s, inferlet=inferlet)


def _before_launch(
    spec: InferletRunSpec, status: InferletRunStatus, *, uid: str, now: float, left_s: float, inferlet: InferletFacts
) -> Action:
    recheck_s = min(left_s, RECHECK_S)
    if not inferlet.found:
        message = (
            f"spec.inferlet names {spec.inferlet}, which isn't in the namespace: create it, or "
            "delete this run and create one that names another"
        )
        return Wait(recheck_s, Reason.INFERLET_NOT_FOUND, message)
    if not inferlet.ready:
        return Wait(recheck_s, Reason.INFERLET_NOT_READY, f"Inferlet {spec.inferlet}: {inferlet.message}")
    if inferlet.held:
        return Wait(recheck_s, Reason.INFERLET_NOT_RUNNABLE, f"Inferlet {spec.inferlet}: {inferlet.held}")
    if status.attempts and (due := still_since(status, 0.0) + backoff_s(status.attempts)) > now:
        return Wait(min(left_s, due - now), Reason.BACK_OFF, f"attempt {status.attempts} failed")
    attempt = status.attempts + 1
    return Launch(attempt, launch_key(uid, attempt), left_s)


def _waits_for(status: InferletRunStatus) -> str:
    """What a run that isn't running says of itself."""
    running = find(status.conditions, "Running")
    return f"{running.reason}: {running.message}" if running is not None else ""


def still_since(status: InferletRunStatus, unknown: float) -> float:
    """Since when nothing runs, Unix time, s: its last failure, if it was launched; `unknown`: it doesn't say."""
    running = find(status.conditions, "Running")
    return parse(running.last_transition_time) if running is not None else unknown


def _after_end(spec: InferletRunSpec, status: InferletRunStatus, now: float) -> Action:
    if spec.ttl_seconds_after_finished is None or status.completion_time is None:
        return Rest(None)
    left_s = parse(status.completion_time) + spec.ttl_seconds_after_finished - now
    return Delete() if left_s <= 0 else Rest(left_s)


# ---- what the status says ---------------------------------------------------------------------------------------


def waiting(old: InferletRunStatus, wait: Wait, *, generation: int, now: float) -> InferletRunStatus:
    """Nothing runs yet."""
    return _with(old, generation, now, "Pending", wait.reason, wait.message)


def launched(
    old: InferletRunStatus, attempt: int, program_id: str, *, generation: int, now: float
) -> InferletRunStatus:
    """An attempt runs."""
    fresh = {"attempts": attempt, "program_id": program_id, "output": "", "output_truncated": False, "error": None}
    new = old.model_copy(update=fresh | {"result": None, "tokens": Tokens()})
    return _with(new, generation, now, "Running", Reason.LAUNCHED, f"program {program_id}")


def progressed(old: InferletRunStatus, output: Output) -> InferletRunStatus:
    """The program that runs has put out more."""
    return old.model_copy(update={"output": output.text, "output_truncated": output.truncated})


def retrying(old: InferletRunStatus, outcome: Outcome, *, generation: int, now: float) -> InferletRunStatus:
    """An attempt failed; the next one waits."""
    message = f"attempt {old.attempts}: {outcome.error}"
    return _with(_ended(old, outcome), generation, now, "Pending", Reason.BACK_OFF, message)


def finished(old: InferletRunStatus, finish: Finish, *, generation: int, now: float) -> InferletRunStatus:
    """The run has ended."""
    outcome = finish.outcome
    new = _ended(old, outcome).model_copy(update={"completion_time": stamp(now)})
    if outcome.success:
        return _with(new, generation, now, "Succeeded", Reason.SUCCEEDED, "")
    name = outcome.error.name if outcome.error is not None else Reason.FAILED
    message = str(outcome.error or "")
    if finish.waited and outcome.error is not None:
        told = _waited(old, finish.waited, outcome.error)
        message, new = told.message, new.model_copy(update={"error": told})
    return _with(new, generation, now, "Failed", name, message)


def _ended(old: InferletRunStatus, outcome: Outcome) -> InferletRunStatus:
    update: dict[str, object] = {
        "error": _error(outcome.error, outcome.stderr) if outcome.error is not None else None,
        "result": tail(outcome.result.encode()).text if outcome.result is not None else None,
    }
    if old.phase == "Running":  # else nothing was launched since
        update["tokens"] = Tokens(input=outcome.input_tokens, output=outcome.output_tokens)
    if outcome.output.text or outcome.success:
        update |= {"output": outcome.output.text, "output_truncated": outcome.output.truncated}
    return old.model_copy(update=update)


def _waited(old: InferletRunStatus, waited: str, late: TartletError) -> RunError:
    """Why a run ended that wasn't running then; the latest attempt's end stays, if there was one."""
    launched = "launched again" if old.attempts else "launched"
    message = f"the run was not {launched} within its deadline of {late.fields['deadline_s']} s; it waited: {waited}"
    failed = old.error if old.attempts else None
    if failed is not None:
        ended = f"; attempt {old.attempts} ended in {failed.name}"
        message = message[: TRACEBACK_CHARS - len(ended)] + ended
    told = {
        "message": message[:TRACEBACK_CHARS],
        "remedy": _FAILED_REMEDY if waited.startswith(Reason.BACK_OFF) else _WAITED_REMEDY,
        "traceback": failed.traceback if failed is not None else "",
        "stderr": failed.stderr if failed is not None else "",
    }
    return _error(late).model_copy(update=told)


def _error(error: TartletError, stderr: str = "") -> RunError:
    traceback = tail(str(error.fields.get("traceback", "")).encode(errors="replace"), limit=TRACEBACK_CHARS).text
    message = str(error)
    if traceback:  # the message repeats it
        message = message.split("\n", 1)[0]
    return RunError(
        name=error.name,
        number=error.number,
        message=message[:TRACEBACK_CHARS],
        remedy=error.remedy[:4096],
        traceback=traceback,
        stderr=stderr,
    )


def _with(
    old: InferletRunStatus, generation: int, now: float, phase: str, reason: str, message: str
) -> InferletRunStatus:
    ended = phase in ("Succeeded", "Failed")
    progress = reason if ended else Reason.NOT_FINISHED
    wants = [
        Want("Succeeded", "True" if phase == "Succeeded" else "False" if ended else "Unknown", progress, message),
        Want("Failed", "True" if phase == "Failed" else "False" if ended else "Unknown", progress, message),
        Want("Running", "True" if phase == "Running" else "False", reason, message),
    ]
    if not ended:
        wants[0], wants[1] = (Want(w.type, w.status, reason, message) for w in wants[:2])
    time = stamp(now)
    return old.model_copy(
        update={
            "observed_generation": generation,
            "phase": phase,
            "start_time": old.start_time or time,
            "conditions": merged(old.conditions, wants, generation=generation, now=time),
        }
    )
