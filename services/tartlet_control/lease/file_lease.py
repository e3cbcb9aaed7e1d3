"""A lease on one machine: a lock on a file that has the epoch. The kernel takes the lock back when its holder dies."""

from __future__ import annotations

import asyncio
import fcntl
import os
from math import inf
from typing import Final

from tartlet_common.clock import Clock
from tartlet_common.rpc.resume import epoch_of

_POLL_S: Final = 0.05


class FileLease:
    """A lock on a file."""

    until = inf

    def __init__(self, path: str, clock: Clock) -> None:
        """Name the file. It is made when the lease is acquired."""
        self._path = path
        self._clock = clock
        self._file: int | None = None

    async def acquire(self) -> int:
        """Wait for the lock, and return the epoch: at least the wall clock."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_POLL_S)
        before = os.pread(file, 32, 0).strip()
        epoch = max(epoch_of(self._clock.unix_ns()), int(before) + 1 if before.isdigit() else 0)
        os.pwrite(file, b"%-31d\n" % epoch, 0)
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
