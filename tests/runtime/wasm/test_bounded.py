"""A compiler's process ends at its share of memory or at its time, and the cause of the end is known."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tartlet_runtime.wasm.compiling.bounded import Ended, run_bounded

MIB = 1 << 20
ABORT = "import os; os.abort()"
GROW = "import time; held = [bytearray(b'x' * (1 << 20)) for _ in range(400)]; time.sleep(60)"


def run(code: str, tmp_path: Path, timeout_s: float = 30.0) -> Ended:
    """Run Python code with 64 MiB of memory in the place of a compiler."""
    return run_bounded([sys.executable, "-c", code], tmp_path / "errors", 64 * MIB, timeout_s)


def test_a_compiler_that_passes_its_share_is_killed_at_once(tmp_path: Path) -> None:
    ended = run(GROW, tmp_path)
    assert ended.lacked_memory
    assert not ended.timed_out
    assert 64 * MIB < ended.most_bytes < 400 * MIB


@pytest.mark.parametrize(
    ("before", "lacked"),
    [("", False), ("import sys; sys.stderr.write('memory allocation of 99 bytes failed'); sys.stderr.flush();", True)],
)
def test_an_abort_is_a_lack_of_memory_only_with_evidence(tmp_path: Path, before: str, lacked: bool) -> None:
    ended = run(before + ABORT, tmp_path)
    assert ended.status == -signal.SIGABRT
    assert ended.lacked_memory == lacked


def test_a_compiler_that_hangs_ends_by_its_time(tmp_path: Path) -> None:
    ended = run("import time; time.sleep(60)", tmp_path, timeout_s=0.3)
    assert ended.timed_out
    assert not ended.lacked_memory
