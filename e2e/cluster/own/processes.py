"""A process known by its number and its start, so that a number used again is never taken for it."""

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
    """A process of this machine; `started` is in clock ticks since it booted."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process:
        """The process that has this number now.

        Raises:
            ProcessLookupError: There is none.
        """
        return cls(pid, _stat(pid)[1])

    @classmethod
    def read(cls, file: Path) -> Process | None:
        """The one that was written to a file, if that is there and whole."""
        try:
            return cls(**json.loads(file.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def write(self, file: Path) -> None:
        """Keeps it for `read`."""
        write_whole(file, json.dumps(asdict(self)))

    def alive(self) -> bool:
        """Whether it runs; one that ended and that nobody waited for doesn't."""
        try:
            state, started = _stat(self.pid)
        except ProcessLookupError:
            return False
        return started == self.started and state not in "ZX"

    def children(self) -> list[int]:
        """The numbers of its children; none if it has ended, whatever has its number now."""
        if not self.alive():
            return []
        try:
            return [int(n) for n in (PROC / f"{self.pid}/task/{self.pid}/children").read_text().split()]
        except FileNotFoundError:
            return []

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, if it still runs."""
        if self.alive():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended within this time."""
        end = time.monotonic() + timeout_s
        while self.alive():
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True


def _stat(pid: int) -> tuple[str, int]:
    """State and start of a process; its name may hold anything, so fields count from its last parenthesis."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(pid) from None
    return fields[0], int(fields[19])


def in_namespace(kind: str, inode: int) -> Iterable[int]:
    """Numbers of the processes whose namespace of this kind has this number."""
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "ns" / kind).stat().st_ino == inode:
                    yield int(entry.name)
            except OSError:
                continue
