"""What an InferletRun's status says, after what was decided about the run. Pure."""

from __future__ import annotations

from typing import Final

from tartlet_common.errors.registry import DeadlineExceeded, TartletError
from tartlet_operator.api.conditions import Status, Want, find, merged
from tartlet_operator.api.inferlet_run import TRACEBACK_CHARS, InferletRunStatus, RunError, RunPause, Tokens
from tartlet_operator.api.reasons import Reason, brief
from tartlet_operator.api.times import parse, stamp
from tartlet_operator.machinery.program_output import Outcome, Output, Seen, tail
from tartlet_operator.runs.decisions import LAUNCHED, Finish, Retry, Wait

_RUNNING: Final[dict[str, Status]] = {"Running": "True", "Unknown": "Unknown"}
_SILENT: Final = (
    "the program's runtime doesn't answer: the program may go on, or be lost; if it is lost, it is launched again as "
    "often as spec.lossRetries allows"
)
_LATE_REMEDY: Final = (
    "Raise spec.deadlineSeconds, which counts from the run's creation; then create another InferletRun."
)
_WAITED_REMEDY: Final = "Mend what it waited for, or raise spec.deadlineSeconds; then create another InferletRun."
_FAILED_REMEDY: Final = (
    "Mend the program, or raise spec.deadlineSeconds until its retries fit in; then create another InferletRun."
)


def waiting(old: InferletRunStatus, wait: Wait, *, generation: int, now: float) -> InferletRunStatus:
    """Return the status of a run that waits."""
    return _with(old, generation, now, "Pending", wait.reason, wait.message)


def launched(
    old: InferletRunStatus, attempt: int, program_id: str, *, generation: int, now: float
) -> InferletRunStatus:
    """Return the status of a run whose attempt was launched."""
    fresh = {"attempts": attempt, "program_id": program_id, "output": "", "output_truncated": False, "error": None}
    fresh |= {"paused_seconds": 0.0, "pauses": []}
    times = {"launch_time": stamp(now), "earlier_tokens": old.tokens}
    new = old.model_copy(update=fresh | times | {"result": None})
    return _with(new, generation, now, "Running", Reason.LAUNCHED, f"program {program_id}")


def progressed(
    old: InferletRunStatus, output: Output | None, seen: Seen | None, *, silent: bool, generation: int, now: float
) -> InferletRunStatus:
    """Return the status of a run with a program.

    Args:
        old: the status that was written last.
        output: what the program has put out; None: unknown.
        seen: what a listing has shown of the program; None: unknown.
        silent: whether the program's runtime doesn't answer.
        generation: the generation of the run.
        now: Unix time, s.
    """
    update: dict[str, object] = {}
    if output is not None and output != Output() and output.text != old.output:
        update |= {"output": output.text, "output_truncated": output.truncated}
    recovering = False
    if seen is not None:
        recovering = seen.recovering
        update["tokens"] = _total(old, seen.tokens)
        update["paused_seconds"] = round(seen.paused_s, 3)
        update["pauses"] = [RunPause(cause=p.cause, seconds=round(p.seconds, 3)) for p in seen.pauses]
    new = old.model_copy(update=update)
    if silent and old.phase != "Unknown":
        return _with(new, generation, now, "Unknown", Reason.RUNTIME_UNREACHABLE, _SILENT)
    running = find(old.conditions, "Running")
    was_recovering = running is not None and running.reason == Reason.RECOVERING
    if not silent and (old.phase == "Unknown" or (seen is not None and recovering != was_recovering)):
        reason = Reason.RECOVERING if recovering else Reason.LAUNCHED
        return _with(new, generation, now, "Running", reason, f"program {old.program_id}")
    return new


def retrying(old: InferletRunStatus, retry: Retry, *, generation: int, now: float) -> InferletRunStatus:
    """Return the status of a run whose attempt failed and whose next attempt waits."""
    message = f"attempt {old.attempts}: {brief(retry.outcome.error)}" if retry.outcome.error is not None else ""
    new = _ended(old, retry.outcome, lost=retry.lost)
    return _with(new, generation, now, "Pending", Reason.BACK_OFF, message)


def finished(old: InferletRunStatus, finish: Finish, *, generation: int, now: float) -> InferletRunStatus:
    """Return the status of a run that has ended."""
    outcome = finish.outcome
    new = _ended(old, outcome, lost=finish.lost).model_copy(update={"completion_time": stamp(now)})
    if outcome.success:
        return _with(new, generation, now, "Succeeded", Reason.SUCCEEDED, "")
    name = outcome.error.name if outcome.error is not None else Reason.FAILED
    message = brief(outcome.error) if outcome.error is not None else ""
    told = _late(old, finish, now)
    if told is not None:
        message, new = told.message, new.model_copy(update={"error": told})
    return _with(new, generation, now, "Failed", name, message)


def _late(old: InferletRunStatus, finish: Finish, now: float) -> RunError | None:
    """Return the error of a run whose deadline passed, if waits or earlier attempts took a part of it."""
    late = finish.outcome.error
    if late is not None and finish.waited:
        return _waited(old, finish.waited, late)
    if not isinstance(late, DeadlineExceeded) or old.phase not in LAUNCHED or not (old.launch_time and old.start_time):
        return None
    launched = parse(old.launch_time)
    before_s, ran_s = launched - parse(old.start_time), max(now - launched, 0.0)
    if before_s < 1.0:
        return None
    message = (
        f"attempt {old.attempts} was ended after {ran_s:.0f} s: the run's deadline of {late.fields['deadline_s']} s "
        f"includes the {before_s:.0f} s of waits and earlier attempts before it"
    )
    return _error(late, finish.outcome.stderr).model_copy(update={"message": message, "remedy": _LATE_REMEDY})


def _total(old: InferletRunStatus, latest: Tokens) -> Tokens:
    """Return the tokens of all launches; the count never falls."""
    earlier, told = old.earlier_tokens, old.tokens
    return Tokens(
        input=max(told.input, earlier.input + latest.input), output=max(told.output, earlier.output + latest.output)
    )


def _ended(old: InferletRunStatus, outcome: Outcome, *, lost: bool) -> InferletRunStatus:
    update: dict[str, object] = {
        "error": _error(outcome.error, outcome.stderr) if outcome.error is not None else None,
        "result": tail(outcome.result.encode()).text if outcome.result is not None else None,
    }
    if old.phase in LAUNCHED:  # else nothing was launched since the last end
        update["tokens"] = _total(old, Tokens(input=outcome.input_tokens, output=outcome.output_tokens))
        update["losses"] = old.losses + lost
    if outcome.output.text or outcome.success:
        update |= {"output": outcome.output.text, "output_truncated": outcome.output.truncated}
    return old.model_copy(update=update)


def _waited(old: InferletRunStatus, waited: str, late: TartletError) -> RunError:
    """Return the error of a run whose deadline passed while it waited; it keeps the latest attempt's traceback."""
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
        Want("Running", _RUNNING.get(phase, "False"), reason, "" if ended else message),
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
