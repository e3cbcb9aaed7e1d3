"""What an InferletRun's status says, after what was decided about the run. Pure."""

from __future__ import annotations

from typing import Final

from tartlet_common.errors.registry import TartletError
from tartlet_operator.api.conditions import Want, merged
from tartlet_operator.api.inferlet_run import TRACEBACK_CHARS, InferletRunStatus, RunError, Tokens
from tartlet_operator.api.reasons import Reason
from tartlet_operator.api.times import stamp
from tartlet_operator.machinery.program_output import Outcome, Output, tail
from tartlet_operator.runs.decisions import Finish, Wait

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
    new = old.model_copy(update=fresh | {"result": None, "tokens": Tokens()})
    return _with(new, generation, now, "Running", Reason.LAUNCHED, f"program {program_id}")


def progressed(old: InferletRunStatus, output: Output) -> InferletRunStatus:
    """Return the status with more output of the running program."""
    return old.model_copy(update={"output": output.text, "output_truncated": output.truncated})


def retrying(old: InferletRunStatus, outcome: Outcome, *, generation: int, now: float) -> InferletRunStatus:
    """Return the status of a run whose attempt failed and whose next attempt waits."""
    message = f"attempt {old.attempts}: {outcome.error}"
    return _with(_ended(old, outcome), generation, now, "Pending", Reason.BACK_OFF, message)


def finished(old: InferletRunStatus, finish: Finish, *, generation: int, now: float) -> InferletRunStatus:
    """Return the status of a run that has ended."""
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
    if old.phase == "Running":  # else nothing was launched since the last end
        update["tokens"] = Tokens(input=outcome.input_tokens, output=outcome.output_tokens)
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
