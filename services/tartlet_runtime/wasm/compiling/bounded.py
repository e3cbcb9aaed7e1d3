"""Run a compiler as a process and end the process when it passes its time or its share of memory.

A compiler whose allocation fails aborts or hangs, as its threads happen to wait for each other. So this module reads
the compiler's memory every few milliseconds and kills the compiler at its share. The compiler's own limit
(RLIMIT_DATA) lies above the share and catches one large allocation between two reads.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

INVALID = 3
"""Exit status of a compiler whose module isn't valid."""
OUT_OF_MEMORY = 4
"""Exit status of a compiler whose Python gets no memory."""
SLACK_BYTES = 256 << 20
"""How far a compiler's own limit of writable memory lies above its share."""
_READ_S = 0.01  # between two reads of the memory
_ERRORS_BYTES = 1 << 16
_NEAR = 0.75
"""A compiler that aborts lacks memory if it has used this part of its share; another abort is a fault of its own."""
_ALLOCATION = re.compile(rb"memory allocation of \d+ bytes failed")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a compiler ended."""

    status: int  # negative: the signal's number
    errors: bytes  # the first 64 KiB of its standard error
    most_bytes: int  # of memory, as last read
    killed_at_share: bool = False
    timed_out: bool = False
    share_bytes: int = 0

    @property
    def lacked_memory(self) -> bool:
        """Whether there is evidence that the compiler needs more than its share."""
        if self.killed_at_share or self.status == OUT_OF_MEMORY or _ALLOCATION.search(self.errors):
            return True
        crashed = self.status not in (0, INVALID) and not self.timed_out
        return crashed and self.most_bytes > _NEAR * self.share_bytes


def run_bounded(command: Sequence[str], errors: Path, share_bytes: int, timeout_s: float) -> Ended:
    """Run a compiler until it ends, passes `timeout_s` seconds or holds more than `share_bytes` bytes of memory.

    Args:
        command: program and arguments.
        errors: a file for the compiler's standard error.
        share_bytes: anonymous resident memory that the process may have.
        timeout_s: seconds that the process may take.
    """
    end_s = time.monotonic() + timeout_s
    most = 0
    full = late = False
    with (
        errors.open("w+b") as told,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=told) as process,
    ):
        try:
            while not (full or late):
                try:
                    process.wait(_READ_S)
                    break
                except subprocess.TimeoutExpired:
                    most = max(most, anonymous_bytes(process.pid))
                full, late = most > share_bytes, time.monotonic() > end_s
        finally:
            process.kill()
            status = process.wait()
        told.seek(0)
        return Ended(status, told.read(_ERRORS_BYTES), most, full and status != 0, late and status != 0, share_bytes)


def anonymous_bytes(pid: int) -> int:
    """Return the resident bytes of a process that no file backs; 0 for a process that has ended."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_bytes().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * _PAGE_BYTES
