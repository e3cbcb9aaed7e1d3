"""A run whose clock and programs are in a test's hands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tartlet_common.errors.registry import (
    ProgramFailed,
)
from tartlet_operator.api.inferlet_run import InferletRunSpec, InferletRunStatus
from tartlet_operator.machinery.program_output import Outcome, Output
from tartlet_operator.runs import status
from tartlet_operator.runs.decisions import (
    Finish,
    InferletFacts,
    Launch,
    Retry,
    Wait,
    decide,
)
from tests.operator.objects import run

NOW = "2026-01-01T00:00:00Z"

READY = InferletFacts(found=True, ready=True)
OK = Outcome(success=True, output=Output("962\n"), result="done", input_tokens=3, output_tokens=7)
BAD = Outcome(success=False, error=ProgramFailed(traceback="Traceback:\n  line 1\nValueError: x"))


class Play:
    """A run from its creation to its end, with the clock and the programs in the test's hands."""

    def __init__(self, spec: InferletRunSpec, now: float = 1000.0) -> None:
        self.spec = spec
        self.now = now
        self.status = InferletRunStatus()
        self.keys: list[str] = []
        self.killed = False
        self.followed_s = 600.0

    def step(self, inferlet: InferletFacts = READY, outcome: Outcome | None = None, *, silent: bool = False) -> Any:
        action = decide(
            self.spec,
            self.status,
            uid="u",
            now=self.now,
            inferlet=replace(inferlet, silent=silent),
            outcome=outcome,
            followed_s=self.followed_s,
        )
        match action:
            case Launch():
                self.keys.append(action.key)
                self.status = status.launched(self.status, action.attempt, "prog", generation=1, now=self.now)
            case Wait():
                self.status = status.waiting(self.status, action, generation=1, now=self.now)
            case Retry():
                self.status = status.retrying(self.status, action, generation=1, now=self.now)
            case Finish():
                self.killed |= action.kill
                self.status = status.finished(self.status, action, generation=1, now=self.now)
        return action


def play(**spec: Any) -> Play:
    return Play(run(**spec).spec)
