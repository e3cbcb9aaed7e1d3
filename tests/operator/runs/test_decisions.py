"""Decisions about InferletRuns, played through with random programs and clocks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tartlet_common.errors.registry import (
    ControlLost,
    DeadlineExceeded,
    Draining,
    ProgramFailed,
    RuntimeLost,
    TartletError,
    WorkerLost,
)
from tartlet_common.pauses import Pause
from tartlet_operator.api import Inferlet
from tartlet_operator.api.conditions import find, holds
from tartlet_operator.api.inferlet_run import OUTPUT_BYTES, InferletRunStatus, RunPause, Tokens
from tartlet_operator.api.reasons import Reason
from tartlet_operator.machinery.program_output import Outcome, Output, Seen, tail
from tartlet_operator.runs import status
from tartlet_operator.runs.decisions import (
    LATE_S,
    Delete,
    Finish,
    Follow,
    InferletFacts,
    Launch,
    Rest,
    Retry,
    Wait,
)
from tartlet_operator.runs.reconcile import facts
from tests.operator.objects import body
from tests.operator.runs.played_runs import BAD, NOW, OK, READY, play


def test_a_successful_run() -> None:
    p = play(ttlSecondsAfterFinished=60)
    assert isinstance(p.step(), Launch)
    assert p.status.phase == "Running"
    assert p.step() == Follow("prog", 600.0 + LATE_S)
    assert isinstance(p.step(outcome=OK), Finish)
    s = p.status
    assert (s.phase, s.output, s.result, s.attempts, s.tokens.output) == ("Succeeded", "962\n", "done", 1, 7)
    assert holds(s.conditions, "Succeeded")
    assert not holds(s.conditions, "Failed")
    assert p.step() == Rest(60.0)
    p.now += 61
    assert isinstance(p.step(), Delete)


def test_a_failure_carries_the_programs_error() -> None:
    p = play()
    p.step()
    p.step(outcome=BAD)
    assert p.status.phase == "Failed"
    assert p.status.error is not None
    assert (p.status.error.name, p.status.error.number) == ("ProgramFailed", 201)
    assert p.status.error.traceback.endswith("ValueError: x")
    assert p.status.error.message == "the program raised an exception"
    assert p.status.error.remedy
    assert holds(p.status.conditions, "Failed")
    assert next(c.reason for c in p.status.conditions if c.type == "Succeeded") == "ProgramFailed"
    told = {c.type: c.message for c in p.status.conditions}
    named = "the program raised an exception: ValueError: x"
    assert told == {"Succeeded": named, "Failed": named, "Running": ""}, "the traceback stands in the error alone"


def test_retries_wait_longer_each_time_and_use_a_key_of_their_own() -> None:
    p = play(retries=2)
    p.step()
    assert p.step(outcome=BAD) == Retry(BAD, 1.0)
    assert isinstance(wait := p.step(), Wait)
    assert wait.reason == Reason.BACK_OFF
    p.now += 1.0
    p.step()
    assert p.step(outcome=BAD) == Retry(BAD, 2.0)
    p.now += 2.0
    p.step()
    assert isinstance(p.step(outcome=BAD), Finish)
    assert p.keys == ["inferletrun-u-1", "inferletrun-u-2", "inferletrun-u-3"]
    assert p.status.attempts == 3


LOST = [WorkerLost(engine="e"), ControlLost(why="w"), RuntimeLost(), Draining(engine="e", grace_s=30)]


@pytest.mark.parametrize("error", LOST, ids=lambda e: e.name)
def test_a_loss_of_the_infrastructure_is_retried_without_a_retry(error: TartletError) -> None:
    p = play()  # retries: 0
    p.step()
    lost = Outcome(success=False, error=error, input_tokens=3, output_tokens=7)
    assert p.step(outcome=lost) == Retry(lost, 1.0, lost=True)
    assert (p.status.attempts, p.status.losses, p.status.tokens.output) == (1, 1, 7)
    p.now += 1.0
    p.step()
    assert (p.status.phase, p.status.tokens.output, p.status.earlier_tokens.output) == ("Running", 7, 7)
    p.step(outcome=BAD)
    assert (p.status.phase, p.status.attempts, p.status.losses) == ("Failed", 2, 1), "its own failure is not retried"
    assert p.status.tokens.output == 7


def test_losses_and_failures_have_bounds_of_their_own() -> None:
    p = play(retries=1, lossRetries=2)
    lost = Outcome(success=False, error=RuntimeLost())
    for outcome in (lost, BAD, lost):
        p.now += 60.0
        assert isinstance(p.step(), Launch)
        assert isinstance(p.step(outcome=outcome), Retry)
    p.now += 60.0
    p.step()
    finish = p.step(outcome=lost)
    assert isinstance(finish, Finish)
    assert (p.status.attempts, p.status.losses) == (4, 3)
    assert p.status.error is not None
    assert p.status.error.name == "RuntimeLost"

    p = play(lossRetries=0)
    p.step()
    assert isinstance(p.step(outcome=lost), Finish), "a program that must not begin twice"


def test_a_run_that_stands_still_says_so_and_then_for_how_long() -> None:
    p = play()
    p.step()

    def look(seen: Seen) -> str:
        p.status = status.progressed(p.status, None, seen, silent=False, generation=1, now=p.now)
        running = find(p.status.conditions, "Running")
        assert running is not None
        assert (p.status.phase, running.status) == ("Running", "True")
        return running.reason

    assert look(Seen(recovering=True)) == Reason.RECOVERING
    began = p.status
    assert look(Seen(recovering=True)) == Reason.RECOVERING
    assert p.status == began, "nothing is written twice"
    assert look(Seen(paused_s=2.5, pauses=(Pause("worker", 2.5),))) == Reason.LAUNCHED
    assert (p.status.paused_seconds, p.status.pauses) == (2.5, [RunPause(cause="worker", seconds=2.5)])
    p.step(outcome=Outcome(success=False, error=RuntimeLost()))
    p.now += 60.0
    p.step()
    assert (p.status.paused_seconds, p.status.pauses) == (0.0, []), "the next launch is another program"


def test_a_run_whose_runtime_is_silent_is_in_a_phase_of_its_own_and_ends_as_ever() -> None:
    p = play()
    p.step()

    def look(*, silent: bool, tokens: int = 0) -> tuple[str, str, str]:
        seen = Seen(Tokens(output=tokens))
        p.status = status.progressed(p.status, None, seen, silent=silent, generation=1, now=p.now)
        running = find(p.status.conditions, "Running")
        assert running is not None
        return p.status.phase, running.status, running.reason

    assert look(silent=False, tokens=4) == ("Running", "True", Reason.LAUNCHED)
    assert look(silent=True) == ("Unknown", "Unknown", Reason.RUNTIME_UNREACHABLE)
    assert p.status.tokens.output == 4
    assert isinstance(p.step(), Follow)
    again = p.status
    assert look(silent=True) == ("Unknown", "Unknown", Reason.RUNTIME_UNREACHABLE)
    assert p.status == again, "nothing is written twice"
    assert look(silent=False) == ("Running", "True", Reason.LAUNCHED)
    look(silent=True)
    p.step(outcome=OK)
    assert (p.status.phase, p.status.tokens.output) == ("Succeeded", 7)


def test_while_control_is_silent_runs_wait_for_it_and_blame_nobody_else() -> None:
    for there in (READY, InferletFacts(found=True, ready=True, held="no engine"), InferletFacts(found=True)):
        wait = play().step(there, silent=True)
        assert isinstance(wait, Wait)
        assert wait.reason == Reason.CONTROL_UNREACHABLE
    assert isinstance(play().step(silent=False), Launch)


def test_the_deadline_of_a_second_attempt_names_the_attempt_and_the_whole() -> None:
    p = play(retries=1, deadlineSeconds=30)
    p.step()
    p.now += 12.0
    p.step(outcome=BAD)
    p.now += 8.0
    p.step()
    p.now += 10.0
    p.step(outcome=Outcome(success=False, error=DeadlineExceeded(deadline_s=10.0)))
    assert p.status.error is not None
    assert p.status.error.message == (
        "attempt 2 was ended after 10 s: the run's deadline of 30 s includes the 20 s of waits and earlier "
        "attempts before it"
    )
    failed = find(p.status.conditions, "Failed")
    assert failed is not None
    assert failed.message == p.status.error.message


def test_a_deadline_includes_waiting_and_ends_a_running_program() -> None:
    p = play(deadlineSeconds=30)
    assert isinstance(wait := p.step(InferletFacts(found=False)), Wait)
    assert wait.reason == Reason.INFERLET_NOT_FOUND
    p.now += 20
    launch = p.step()
    assert isinstance(launch, Launch)
    assert launch.deadline_s == 10
    p.now += 10
    assert isinstance(p.step(), Follow), "its runtime ends it, to the millisecond"
    p.now += LATE_S
    finish = p.step()
    assert isinstance(finish, Finish)
    assert finish.kill
    assert isinstance(finish.outcome.error, DeadlineExceeded)
    assert p.status.error is not None
    assert p.status.error.message == (
        "attempt 1 was ended after 15 s: the run's deadline of 30 s includes the 20 s of waits and earlier "
        "attempts before it"
    )


def test_a_run_found_past_its_deadline_is_followed_before_it_is_ended() -> None:
    p = play(deadlineSeconds=30)
    p.step()
    p.now += 3600
    p.followed_s = 0.0  # another operator, or one that has just started
    assert p.step() == Follow("prog", LATE_S)
    assert isinstance(p.step(outcome=OK), Finish)
    assert p.status.phase == "Succeeded", "it had ended in time"

    p = play(deadlineSeconds=30)
    p.step()
    p.now += 3600
    p.followed_s = LATE_S
    finish = p.step()
    assert isinstance(finish, Finish)
    assert finish.kill


def test_a_run_whose_deadline_passes_before_its_launch_says_what_it_waited_for() -> None:
    p = play(deadlineSeconds=30)
    p.step(InferletFacts(found=False))
    p.now += 31
    finish = p.step(InferletFacts(found=False))
    assert isinstance(finish, Finish)
    assert not finish.kill
    error, failed = p.status.error, find(p.status.conditions, "Failed")
    assert error is not None
    assert failed is not None
    assert (error.name, failed.reason) == ("DeadlineExceeded", "DeadlineExceeded")
    told = "the run was not launched within its deadline of 30 s; it waited: InferletNotFound: spec.inferlet names i,"
    assert error.message.startswith(told)
    assert failed.message == error.message
    assert "spec.deadlineSeconds" in error.remedy


def test_a_run_whose_deadline_passes_between_attempts_keeps_the_latest_error() -> None:
    for between, remedy in ((READY, "Mend the program"), (InferletFacts(found=False), "Mend what it waited for")):
        p = play(deadlineSeconds=30, retries=3)
        p.step()
        failed = replace(BAD, output=Output("so far"), input_tokens=3, output_tokens=7)
        assert isinstance(p.step(outcome=failed), Retry)
        p.step(between)
        p.now += 31
        finish = p.step(between)
        assert isinstance(finish, Finish)
        status, error = p.status, p.status.error
        assert error is not None
        assert (status.tokens.input, status.tokens.output, status.output) == (3, 7, "so far")
        assert error.name == "DeadlineExceeded"
        assert error.traceback.endswith("ValueError: x")
        assert error.message.endswith("; attempt 1 ended in ProgramFailed")
        assert error.remedy.startswith(remedy)
        assert "spec.deadlineSeconds" in error.remedy


def pooled(reason: str, generation: int = 1, **spec: str) -> InferletFacts:
    """The facts about an Inferlet whose first generation is in the catalogue, and which no engine can run."""
    conditions = [
        {"type": "Ready", "status": "True", "reason": "Catalogued", "lastTransitionTime": NOW},
        {"type": "Runnable", "status": "False", "reason": reason, "message": "why", "lastTransitionTime": NOW},
    ]
    status = {"conditions": conditions, "observedGeneration": 1}
    there = Inferlet.model_validate(body("Inferlet", "i", {"source": {"inline": "pass"}, **spec}, status))
    return facts(there, generation)


def test_a_run_waits_for_the_engines_that_its_inferlet_names() -> None:
    for there in (
        pooled("PoolNotReady", pool="p"),
        pooled("PoolNotFound", pool="p"),
        pooled("PoolNotReady", model="m"),
        pooled("PoolNotReady"),
    ):
        wait = play().step(there)
        assert isinstance(wait, Wait)
        assert wait.reason == Reason.INFERLET_NOT_RUNNABLE
        assert wait.message.endswith(": why")
    # it may need none, or those of another namespace
    for there in (pooled("PoolNotFound"), pooled("PoolNotFound", model="m")):
        assert isinstance(play().step(there), Launch)


def test_a_run_waits_until_the_newest_spec_of_its_inferlet_was_handled() -> None:
    """Otherwise the run would launch the old version with the new arguments."""
    wait = play().step(pooled("PoolNotFound", generation=2))
    assert isinstance(wait, Wait)
    assert wait.reason == Reason.INFERLET_NOT_READY
    assert wait.message.endswith("not looked at yet since it was changed")


def test_a_program_past_its_deadline_is_not_retried() -> None:
    p = play(retries=5)
    p.step()
    left = DeadlineExceeded(deadline_s=2.716946601867676)  # of the attempt, whatever went before it
    assert isinstance(p.step(outcome=Outcome(success=False, error=left)), Finish)
    assert p.status.error is not None
    assert p.status.error.message == f"the program ran longer than its deadline of {p.spec.deadline_seconds} s"


def test_a_relaunch_after_a_lost_answer_has_the_same_key() -> None:
    p = play()
    first = p.step()
    p.status = InferletRunStatus()  # the operator died before it wrote
    second = p.step()
    assert isinstance(first, Launch)
    assert isinstance(second, Launch)
    assert first.key == second.key


OUTCOMES = st.sampled_from([OK, BAD, Outcome(success=False, error=WorkerLost(engine="e"))])


@given(
    retries=st.integers(0, 4),
    deadline_s=st.integers(1, 100),
    events=st.lists(
        st.tuples(st.floats(0, 20), st.none() | OUTCOMES, st.sampled_from([READY, InferletFacts(found=False)])),
        min_size=60,
        max_size=60,
    ),
)
def test_every_run_ends_once_and_within_its_bounds(
    retries: int, deadline_s: int, events: Sequence[tuple[float, Outcome | None, InferletFacts]]
) -> None:
    p = play(retries=retries, deadlineSeconds=deadline_s)
    ends = 0
    for wait_s, outcome, inferlet in events:
        p.now += wait_s
        before = p.status
        action = p.step(inferlet, outcome if p.status.phase == "Running" else None)
        ends += isinstance(action, Finish)
        if before.phase in ("Succeeded", "Failed"):
            assert p.status == before
        assert p.status.attempts <= retries + 1 + p.status.losses
        assert p.status.losses <= p.spec.loss_retries + 1
        assert len(set(p.keys)) == len(p.keys)
        assert sum(holds(p.status.conditions, t) for t in ("Succeeded", "Failed", "Running")) <= 1
        assert (p.status.completion_time is not None) == (p.status.phase in ("Succeeded", "Failed"))
    p.now += deadline_s + LATE_S
    p.step()
    assert p.status.phase in ("Succeeded", "Failed")
    assert ends + (p.status.phase == "Failed" and ends == 0) == 1


def test_a_status_stays_small_whatever_a_program_prints() -> None:
    p = play()
    p.step()
    escapes = "\x1b" * OUTPUT_BYTES
    error = ProgramFailed(traceback=escapes)
    p.step(outcome=Outcome(success=False, output=tail(escapes.encode()), result=escapes, error=error))
    assert p.status.output_truncated
    assert p.status.error is not None
    assert p.status.error.traceback
    assert len(json.dumps(p.status.dump())) < 400 << 10
    plain = "a line of <output>\n" * (OUTPUT_BYTES // 19)
    assert tail(plain.encode()) == Output(plain), "what is read is kept to the documented bound"
