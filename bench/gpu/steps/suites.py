"""Runs the tests that need a card, with their kernels compiled."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from xml.etree import ElementTree as ET

from bench.gpu.paths import ROOT
from bench.gpu.record import Record

TESTS = ("tests/worker/engines/test_triton.py", "tests/worker/graphs/test_on_gpu.py")
REHEARSED = ("tests/worker/graphs/test_setting_up.py",)


def run(record: Record) -> None:
    """Run pytest; a test that fails fails the step, and all tests run."""
    chosen = [test for test in (REHEARSED if record.rehearse else TESTS) if (ROOT / test).exists()]
    report = record.out / f"{record.step}.xml"
    command = [sys.executable, "-m", "pytest", *chosen, "-q", f"--junitxml={report}", "-p", "no:cacheprovider"]
    # Warnings of another torch or Triton are no failures here.
    command += ["-W", "default", "--timeout=60"]
    if not record.rehearse and importlib.util.find_spec("xdist"):  # most of the time goes to compiling kernels
        command += ["-n", str(min(8, os.cpu_count() or 1))]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    sys.stdout.write(done.stdout)  # the step's log has the whole text
    record.note(rc=done.returncode, tail=done.stdout[-3000:])
    if report.exists():
        cases = list(ET.parse(report).getroot().iter("testcase"))  # noqa: S314 - our own file
        bad = [f"{c.get('classname')}::{c.get('name')}" for c in cases if c.find("failure") is not None]
        bad += [f"{c.get('classname')}::{c.get('name')}" for c in cases if c.find("error") is not None]
        skipped = sum(c.find("skipped") is not None for c in cases)
        record.note(ran=len(cases) - skipped, skipped=skipped, failed=bad)
        report.unlink()
    record.expect(done.returncode == 0, f"pytest ended with {done.returncode}")
