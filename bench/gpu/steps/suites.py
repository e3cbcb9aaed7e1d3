"""Runs the tests that need a card, with their kernels compiled."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from xml.etree import ElementTree as ET

from bench.gpu.paths import ROOT
from bench.gpu.record import Record

TESTS = (
    "tests/worker/engines/test_triton.py",
    "tests/worker/gpu/test_triton_pointwise.py",
    "tests/worker/numerics/test_log_sums.py",
)
ALONE = ("tests/worker/graphs/test_on_gpu.py",)
"""One process runs them, because they look at the memory of the whole card."""
REHEARSED = ("tests/worker/graphs/test_setting_up.py",)


def run(record: Record) -> None:
    """Run pytest; a test that fails fails the step, and all tests run."""
    if record.rehearse:
        _pytest(record, REHEARSED, [])
        return
    many = ["-n", str(min(8, os.cpu_count() or 1))] if importlib.util.find_spec("xdist") else []
    _pytest(record, TESTS, many)  # most of the time goes to compiling kernels
    _pytest(record, ALONE, [])


def _pytest(record: Record, tests: Sequence[str], options: Sequence[str]) -> None:
    """Add the results of a run to those of the runs before."""
    report = record.out / f"{record.step}.xml"
    command = [sys.executable, "-m", "pytest", *tests, "-q", f"--junitxml={report}", "-p", "no:cacheprovider"]
    # Warnings of another torch or Triton are no failures here.
    command += ["-W", "default", "--timeout=60", *options]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    sys.stdout.write(done.stdout)  # the step's log has the whole text
    record.expect(done.returncode == 0, f"pytest ended with {done.returncode}: {done.stdout[-2000:]}")
    cases = list(ET.parse(report).getroot().iter("testcase")) if report.exists() else []  # noqa: S314 - our own file
    report.unlink(missing_ok=True)
    bad = [f"{c.get('classname')}::{c.get('name')}" for c in cases if {"failure", "error"} & {part.tag for part in c}]
    skipped = sum(c.find("skipped") is not None for c in cases)
    had = record.data
    record.note(
        ran=had.get("ran", 0) + len(cases) - skipped,
        skipped=had.get("skipped", 0) + skipped,
        failed=[*had.get("failed", ()), *bad],
    )
