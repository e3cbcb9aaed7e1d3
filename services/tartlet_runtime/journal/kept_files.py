"""Journals in files that no program writes to: of programs that failed, and of those that wait for their next owner."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from stat import S_IRUSR, S_IWUSR

from tartlet_runtime.journal.space import Space

MAX_KEPT = 1000
"""Journals kept of programs that failed (or of all, if so configured); the oldest go first."""


class KeptFiles:
    """Bounds the files: the oldest go when there are too many, or no space is left for journals of running programs.

    Files of programs that may live go on for `grace_s` at least, whatever their number and size. Nobody may write to
    such a file, so that other processes know: if its program has ended, nobody was told the end.
    """

    def __init__(self, space: Space, grace_s: float, now: Callable[[], float]) -> None:
        """Begin without files.

        Args:
            space: what the files take, with the journals of running programs.
            grace_s: how long a program may wait for its next owner, in seconds.
            now: seconds since the epoch.
        """
        self._space = space
        self._grace_s = grace_s
        self._now = now
        self._sizes: dict[Path, int] = {}
        self._may_go: dict[Path, None] = {}  # the oldest first
        self._waits: dict[Path, float] = {}  # until when each waits for an owner, the oldest first
        space.make_room = self.make_room

    def __contains__(self, path: Path) -> bool:
        return path in self._sizes

    def waiting(self, directory: Path) -> dict[Path, bool]:
        """Return files that may wait for an owner, whoever has kept them, and whether they are known to wait."""
        since = self._now() - self._grace_s
        waiting = {}
        for path in directory.glob("*.journal"):
            with contextlib.suppress(OSError):  # another runtime has taken it
                stat = path.stat()
                if stat.st_mtime > since:
                    waiting[path] = not stat.st_mode & S_IWUSR
        return waiting

    def find(self, path: Path) -> None:
        """Take up a file that an earlier runtime kept."""
        stat = path.stat()
        self._add(path, stat.st_size, waits=self._now() - stat.st_mtime < self._grace_s)

    def add(self, path: Path, size: int, *, waits: bool) -> None:
        """Keep a file of `size` bytes, and delete others in its stead where the bounds ask for that.

        Args:
            path: of the file.
            size: its bytes.
            waits: whether its program may live, and waits for an owner.
        """
        with contextlib.suppress(OSError):
            os.utime(path, (self._now(), self._now()))  # for `find` of the next runtime
            path.chmod(S_IRUSR if waits else S_IRUSR | S_IWUSR)
        self._add(path, size, waits=waits)
        self.make_room()

    def _add(self, path: Path, size: int, *, waits: bool) -> None:
        self.let_go(path)
        self._sizes[path] = size
        self._space.used_bytes += size
        if waits:
            self._waits[path] = self._now() + self._grace_s
        else:
            self._may_go[path] = None

    def make_room(self) -> None:
        """Delete files that may go until the others fit or none is left."""
        now = self._now()
        while self._waits:
            path, until = next(iter(self._waits.items()))
            if until > now:
                break
            del self._waits[path]
            self._may_go[path] = None
        while self._may_go and (len(self._may_go) > MAX_KEPT or self._space.used_bytes > self._space.limit_bytes):
            self.delete(next(iter(self._may_go)))

    def delete(self, path: Path) -> None:
        """Delete a file, known or not."""
        self.let_go(path)
        path.unlink(missing_ok=True)

    def let_go(self, path: Path) -> None:
        """Leave a file to another runtime."""
        self._space.used_bytes -= self._sizes.pop(path, 0)
        self._may_go.pop(path, None)
        self._waits.pop(path, None)
