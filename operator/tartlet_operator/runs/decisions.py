"""What to do next about an InferletRun. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tartlet_common.errors.registry import ControlLost, DeadlineExceeded, Draining, RuntimeLost, WorkerLost
from tartlet_operator.api.conditions import find
from tartlet_operator.api.inferlet_run import (
    InferletRunSpec,
    InferletRunStatus,
)
from tartlet_operator.api.reasons import Reason
from tartlet_operator.api.times import parse
from tartlet_operator.machinery.program_output import Outcome

BACKOFF_S: Final = 1.0
BACKOFF_MAX_S: Final = 60.0
_KEY_PREFIX: Final = "inferletrun-"
LATE_S: Final = 5.0
"""How long after its deadline a program is ended here, if it was followed for as long.

The runtime keeps the deadline itself. The program may have ended in time while nobody followed it, and its start is
known only to the second.
"""
SOON_S: Final = 60.0
"""A run that is to be deleted this soon gets a timer, so that it goes on time."""
RECHECK_S: Final = 10.0
"""How often a waiting run is looked at, beside the events that say when its wait is over."""
LOSSES: Final = (WorkerLost, ControlLost, RuntimeLost, Draining)
"""Ends of programs that the infrastructure causes. `spec.lossRetries` bounds their retries."""
LAUNCHED: Final = ("Running", "Unknown")
"""Phases of a run that has a program."""
UNREACHABLE: Final = (
    "control doesn't answer, and no run is launched without it: see whether control's pod runs, its log, and the "
    "operator's"
)
_FIRST_PAUSE_S: Final = 2.0
_LAST_PAUSE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class InferletFacts:
    """The facts about the Inferlet that a run names, and about control, which launches it."""

    found: bool
    ready: bool = False
    message: str = ""
    held: str = ""  # why no engine can run it, if the namespace has a pool for it
    silent: bool = False  # whether control doesn't answer


def pause_s(waited_s: float) -> float:
    """Return the pause before a refused launch is tried again, s, after it has waited `waited_s`.

    Example:
        >>> [pause_s(waited_s) for waited_s in (0.0, 20.0, 3600.0)]
        [2.0, 5.0, 30.0]
    """
    return min(max(waited_s / 4, _FIRST_PAUSE_S), _LAST_PAUSE_S)


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing yet; look again after `seconds`."""

    seconds: float
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch attempt number `attempt`, which may take `deadline_s`."""

    attempt: int
    key: str
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Follow:
    """Follow the running program; look again after `seconds` at the latest."""

    program_id: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Finish:
    """End the run with an outcome."""

    outcome: Outcome
    kill: bool = False  # whether the program still runs
    waited: str = ""  # what the run waited for until its deadline
    lost: bool = False  # whether the infrastructure ended the program


@dataclass(frozen=True, slots=True)
class Retry:
    """Note a failed attempt; the next one follows after `seconds`."""

    outcome: Outcome
    seconds: float
    lost: bool = False  # whether the infrastructure ended the program


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the run: its time to live after its end is over."""


@dataclass(frozen=True, slots=True)
class Rest:
    """Leave a run that has ended; look again after `seconds`, None: never."""

    seconds: float | None


Action = Wait | Launch | Follow | Finish | Retry | Delete | Rest


def launch_key(uid: str, attempt: int) -> str:
    """Return the idempotency key of a run's attempt; nobody else's keys begin like it.

    Example:
        >>> uid = "0b3a9c1e-5d53-4c0e-9a57-1f0f2f1b7a11"
        >>> launched_by(launch_key(uid, 2)) == (uid, 2)
        True
    """
    return f"{_KEY_PREFIX}{uid}-{attempt}"


def launched_by(key: str) -> tuple[str, int] | None:
    """Return the run's UID and the attempt that an idempotency key names; None: no operator made the key.

    Example:
        >>> launched_by("0b3a9c1e-5d53-4c0e-9a57-1f0f2f1b7a11-1") is None
        True
    """
    uid, _, attempt = key.removeprefix(_KEY_PREFIX).rpartition("-")
    if not key.startswith(_KEY_PREFIX) or not uid or not (attempt.isascii() and attempt.isdecimal()):
        return None
    return uid, int(attempt)


def backoff_s(attempts: int) -> float:
    """Return the pause after a number of failed attempts, s.

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
    ttl_s: int = -1,
) -> Action:
    """Decide what to do next about a run.

    Args:
        spec: the run's spec.
        status: the status that was written last.
        uid: the run's UID.
        now: Unix time, s.
        inferlet: facts about the Inferlet that the run names.
        outcome: how the current attempt ended, if it has.
        followed_s: how long the current program has been followed.
        ttl_s: how long an ended run stays whose spec names no time; -1: forever.
    """
    if status.phase in ("Succeeded", "Failed"):
        return after_end(spec, status, now, ttl_s)
    left_s = (parse(status.start_time) if status.start_time else now) + spec.deadline_seconds - now
    running = status.phase in LAUNCHED
    late = DeadlineExceeded(deadline_s=spec.deadline_seconds)
    if outcome is not None and running:
        if isinstance(outcome.error, DeadlineExceeded):  # the error's own deadline is what was left to this attempt
            return Finish(replace(outcome, error=late))
        lost = isinstance(outcome.error, LOSSES)
        left = spec.loss_retries - status.losses if lost else spec.retries - (status.attempts - 1 - status.losses)
        if outcome.success or left <= 0:
            return Finish(outcome, lost=lost)
        return Retry(outcome, backoff_s(status.attempts), lost=lost)
    if running and status.program_id and (left_s > -LATE_S or followed_s < LATE_S):
        return Follow(status.program_id, max(left_s, 0.0) + LATE_S)
    if left_s <= 0:
        return Finish(Outcome(success=False, error=late), kill=running, waited="" if running else _waits_for(status))
    return _before_launch(spec, status, uid=uid, now=now, left_s=left_s, inferlet=inferlet)


def _before_launch(
    spec: InferletRunSpec,
    status: InferletRunStatus,
    *,
    uid: str,
    now: float,
    left_s: float,
    inferlet: InferletFacts,
) -> Action:
    recheck_s = min(left_s, RECHECK_S)
    if not inferlet.found:
        message = (
            f"spec.inferlet names {spec.inferlet}, which isn't in the namespace: create it, or "
            "delete this run and create one that names another"
        )
        return Wait(recheck_s, Reason.INFERLET_NOT_FOUND, message)
    if inferlet.silent:
        return Wait(recheck_s, Reason.CONTROL_UNREACHABLE, UNREACHABLE)
    if not inferlet.ready:
        return Wait(recheck_s, Reason.INFERLET_NOT_READY, f"Inferlet {spec.inferlet}: {inferlet.message}")
    if inferlet.held:
        return Wait(recheck_s, Reason.INFERLET_NOT_RUNNABLE, f"Inferlet {spec.inferlet}: {inferlet.held}")
    if status.attempts and (due := still_since(status, 0.0) + backoff_s(status.attempts)) > now:
        return Wait(min(left_s, due - now), Reason.BACK_OFF, f"attempt {status.attempts} failed")
    attempt = status.attempts + 1
    return Launch(attempt, launch_key(uid, attempt), left_s)


def _waits_for(status: InferletRunStatus) -> str:
    """Return what a waiting run's status says it waits for."""
    running = find(status.conditions, "Running")
    return f"{running.reason}: {running.message}" if running is not None else ""


def still_since(status: InferletRunStatus, unknown: float) -> float:
    """Return since when nothing runs, Unix time, s: the last failure, if there was one; `unknown` without a status."""
    running = find(status.conditions, "Running")
    return parse(running.last_transition_time) if running is not None else unknown


def expires_s(spec: InferletRunSpec, status: InferletRunStatus, ttl_s: int) -> float:
    """Return when an ended run is to be deleted, Unix time, s; 0: never, or the run goes on."""
    own_s = spec.ttl_seconds_after_finished
    stays_s = ttl_s if own_s is None else own_s
    return 0.0 if stays_s < 0 or status.completion_time is None else parse(status.completion_time) + stays_s


def after_end(spec: InferletRunSpec, status: InferletRunStatus, now: float, ttl_s: int) -> Delete | Rest:
    """Decide about a run that has ended; one that stays for longer than `SOON_S` is left to the sweep."""
    at_s = expires_s(spec, status, ttl_s)
    left_s = at_s - now
    if not at_s or left_s > SOON_S:
        return Rest(None)
    return Delete() if left_s <= 0 else Rest(left_s)
