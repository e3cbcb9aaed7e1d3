"""Processes are killed at random under durable programs for two minutes: under 50 here, under 200 in `make soak`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.serving import tartlet_cli
from tests.lacking import lacking

SURVIVED = ("worker", "redis", "runtime", "control")


def chaos(run_dir: Path, numbers: Path, *flags: str, timeout_s: float) -> dict[str, Any]:
    """Returns the counts that `tartlet bench chaos` made, once it has met all of its goals."""
    if shutil.which("redis-server") is None:
        lacking("redis-server (apt-get install redis-server)")
    options = ("--kill", ",".join(SURVIVED), "--json", str(numbers), "--check", *flags)
    done = tartlet_cli(run_dir, "bench", "chaos", *options, timeout_s=timeout_s)
    assert done.returncode == 0, done.stdout + done.stderr
    (report,) = json.loads(numbers.read_text())["reports"]
    assert {goal["name"] for goal in report["goals"]} == {
        "wrong outputs", "programs that ended in an error", "repeated tool calls", "leaked pages"
    }  # fmt: skip
    return dict(report["rows"])


def check(counts: dict[str, Any], programs: int, faults: int) -> None:
    assert sum(counts[f"SIGKILL to {fault}"] for fault in SURVIVED) >= faults
    assert counts["programs that ended"] >= programs
    assert counts["tool calls"] >= counts["programs that ended"] * 3


@pytest.mark.timeout(700)
def test_no_program_notices_two_minutes_of_deaths(run_dir: Path, tmp_path: Path) -> None:
    # other tests run beside this one, so a program may be silent for longer than on a machine that does nothing else
    flags = ("--seconds", "120", "--programs", "50", "--seed", "3", "--patience-s", "300")
    check(chaos(run_dir, tmp_path / "numbers.json", *flags, timeout_s=600), 50, 8)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_none_of_two_hundred_programs_notices_two_minutes_of_deaths(run_dir: Path, tmp_path: Path) -> None:
    check(chaos(run_dir, tmp_path / "numbers.json", "--seconds", "120", timeout_s=800), 200, 10)
