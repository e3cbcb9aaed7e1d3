"""Which programs no InferletRun wants."""

from __future__ import annotations

from tartlet import ProgramInfo, Usage
from tartlet_operator.api.inferlet_run import InferletRunStatus
from tartlet_operator.orphans import find
from tartlet_operator.run_decisions import launch_key

UID, OTHER = "0b3a9c1e-5d53-4c0e-9a57-1f0f2f1b7a11", "5ff0a35c-9d4e-44b1-8a4d-6c3b0e3d9a02"


def program(name: str, key: str) -> ProgramInfo:
    return ProgramInfo(name, "x.py", "running", "ns", 0.0, 0.0, Usage(), None, "", 0, idempotency_key=key)


def found(key: str, runs: dict[str, InferletRunStatus]) -> bool:
    return bool(find([program("p", key)], runs))


def test_a_program_whose_run_is_gone_or_done_with_it_is_found() -> None:
    assert found(launch_key(UID, 1), {})
    assert found(launch_key(UID, 1), {OTHER: InferletRunStatus(phase="Running", attempts=1)})
    assert found(launch_key(UID, 1), {UID: InferletRunStatus(phase="Failed", attempts=1)})
    assert found(launch_key(UID, 1), {UID: InferletRunStatus(phase="Running", attempts=2)})


def test_a_program_that_a_run_wants_is_left_alone() -> None:
    assert not found(launch_key(UID, 2), {UID: InferletRunStatus(phase="Running", attempts=2)})
    assert not found(launch_key(UID, 1), {UID: InferletRunStatus()}), "launched, and not written yet"
    assert not found(launch_key(UID, 2), {UID: InferletRunStatus(phase="Pending", attempts=1)})


def test_a_program_that_no_operator_launched_is_left_alone() -> None:
    for key in ("", "mine", "inferletrun-", "inferletrun-1", f"inferletrun-{UID}-", f"{UID}-1", f"inferletrun-{UID}-x"):
        assert not found(key, {})
