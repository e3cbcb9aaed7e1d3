"""Identifies processes by number and start time, so that a reused number is never mistaken for an old process."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from e2e.cluster.layout import write_whole

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Process:
    """A process of this machine; `started` is in clock ticks since the machine booted."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process:
        """Returns the process that has this number now.

        Raises:
            ProcessLookupError: No process has this number.
        """
        return cls(pid, _stat(pid)[1])

    @classmethod
    def read(cls, file: Path) -> Process | None:
        """Reads a process from a file; None if the file is missing or incomplete."""
        try:
            return cls(**json.loads(file.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def write(self, file: Path) -> None:
        """Writes the process to a file for `read`."""
        write_whole(file, json.dumps(asdict(self)))

    def alive(self) -> bool:
        """Whether the process runs; a zombie doesn't."""
        try:
            state, started = _stat(self.pid)
        except ProcessLookupError:
            return False
        return started == self.started and state not in "ZX"

    def children(self) -> list[int]:
        """Returns the numbers of the process's children; none if the process has ended."""
        if not self.alive():
            return []
        try:
            return [int(n) for n in (PROC / f"{self.pid}/task/{self.pid}/children").read_text().split()]
        except FileNotFoundError:
            return []

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, if the process still runs."""
        if self.alive():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return

    def wait(self, timeout_s: float) -> bool:
        """Waits for the end of the process and returns whether it ended in time."""
        end = time.monotonic() + timeout_s
        while self.alive():
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True


def _stat(pid: int) -> tuple[str, int]:
    """Returns state and start time. The name may contain anything, so fields are counted from the last parenthesis."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(pid) from None
    return fields[0], int(fields[19])


def in_namespace(kind: str, inode: int) -> Iterable[int]:
    """Returns the numbers of the processes in a namespace, given by kind and number."""
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "ns" / kind).stat().st_ino == inode:
                    yield int(entry.name)
            except OSError:
                continue
