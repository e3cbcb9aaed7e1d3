"""The file that says who owns the journals of a directory: one line for each time that a program was taken over.

Whoever takes a program over holds the lock of the file alone, and whoever appends to journals holds it together with
others. The first line changes when somebody writes the file anew without lines that nobody needs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tartlet_runtime.journal.store import FIRST_EPOCH

_TIDY_BYTES: Final = 1 << 16
"""A file that is smaller is left as it is."""
_FIRST_BYTES: Final = 36  # of a file that was written anew: "#", 32 hexadecimal digits, and " 0\n"


class Takeovers:
    """The epochs of programs that were taken over."""

    def __init__(self, path: Path) -> None:
        """Open the file, or make an empty one. Nothing is read until `hear`.

        Raises:
            OSError: it can't be opened.
        """
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._first = b""  # the first bytes, by which a file that was written anew is recognised
        self._read_bytes = 0
        self._tidy_at = _TIDY_BYTES
        self._epochs: dict[str, int] = {}

    @contextlib.contextmanager
    def lock(self, *, alone: bool) -> Iterator[None]:
        """Hold the file's lock, alone or together with others."""
        fcntl.flock(self._fd, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        try:
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def epoch(self, program_id: str) -> int:
        """Return the epoch of a program's owner, as far as it was heard."""
        return self._epochs.get(program_id, FIRST_EPOCH)

    def hear(self) -> list[str]:
        """Read what was added, and return the programs that were taken over. Call this with the lock held."""
        size = os.fstat(self._fd).st_size
        first = os.pread(self._fd, _FIRST_BYTES, 0)
        if size == self._read_bytes and first == self._first:
            return []
        before = self._epochs
        if first != self._first:
            self._first, self._read_bytes, self._epochs = first, 0, {}
        lines = os.pread(self._fd, size - self._read_bytes, self._read_bytes).decode(errors="replace")
        self._read_bytes = size
        heard: dict[str, int] = {}
        for line in lines.splitlines():
            with contextlib.suppress(ValueError):  # what a killed runtime left of a line
                program_id, epoch = line.split()
                heard[program_id] = max(heard.get(program_id, 0), int(epoch))
        known = {program_id: before.get(program_id, FIRST_EPOCH) for program_id in heard}
        self._epochs |= heard
        return [program_id for program_id, epoch in heard.items() if epoch > known[program_id]]

    def add(self, program_id: str, epoch: int) -> None:
        """Give a program to this runtime. Call this with the lock held alone, after `hear`.

        Raises:
            OSError: the disk is full.
        """
        os.write(self._fd, f"{program_id} {epoch}\n".encode())
        self.hear()

    def tidy(self, needed: Callable[[], set[str]]) -> None:
        """Drop lines of programs without journals, once the file is large. Call this with the lock held alone.

        Args:
            needed: returns the programs whose journals are in the directory.
        """
        if self._read_bytes < self._tidy_at:
            return
        ids = needed()
        kept = {program_id: epoch for program_id, epoch in self._epochs.items() if program_id in ids}
        text = f"#{uuid.uuid4().hex} 0\n" + "".join(f"{program_id} {epoch}\n" for program_id, epoch in kept.items())
        data = text.encode()
        self._tidy_at = max(_TIDY_BYTES, 2 * len(data))
        if len(data) >= self._read_bytes:
            return
        with contextlib.suppress(OSError), self._path.open("r+b", buffering=0) as file:
            file.write(data)  # the disk has this room; old lines behind these change no epoch
            file.truncate()
        self.hear()

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
