"""A lease on one machine: a lock on a file that has the epoch. The kernel takes the lock back when its holder dies."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable
from math import inf
from typing import Final

from tartlet_common.clock import Clock
from tartlet_common.rpc.resume import epoch_of

_POLL_S: Final = 0.05


class FileLease:
    """A lock on a file, which has the epoch and the holder's address in one line."""

    until = inf

    def __init__(self, path: str, advertised: str, clock: Clock) -> None:
        """Name the file, which is made when the lease is acquired, and this control's address; "": none."""
        self._path = path
        self._advertised = advertised
        self._clock = clock
        self._file: int | None = None

    async def acquire(self, on_leader: Callable[[str], None]) -> int:
        """Wait for the lock, and return the epoch: at least the wall clock."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                on_leader(_read(file)[1])
                await asyncio.sleep(_POLL_S)
        epoch = max(epoch_of(self._clock.unix_ns()), _read(file)[0] + 1)
        line = f"{epoch} {self._advertised}\n".encode()
        os.pwrite(file, line, 0)
        os.ftruncate(file, len(line))
        os.fsync(file)
        self._file = file
        return epoch

    async def keep(self) -> None:
        """Return at once: the lock is held as long as the process lives."""

    async def release(self) -> None:
        """Give the lock back."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _read(file: int) -> tuple[int, str]:
    """Return the epoch and the address in the file; 0 and "" if it has none, or if another process is writing it."""
    epoch, _, address = os.pread(file, 4096, 0).decode(errors="replace").partition(" ")
    return int(epoch) if epoch.strip().isdigit() else 0, address.strip() if address.endswith("\n") else ""
