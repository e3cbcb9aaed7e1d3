"""What all journals of a runtime share: the space on disk, and the memory of what isn't written yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tartlet_common.errors.registry import JournalFull

BUFFERED_BYTES: Final = 8 << 20
"""Bytes of all journals that may wait to be written, and one record more."""


class Space:
    """The disk space that journals of running programs share with kept ones, and the bytes not yet written."""

    __slots__ = ("limit_bytes", "make_room", "num_running", "pending_bytes", "used_bytes")

    def __init__(self, limit_bytes: int, make_room: Callable[[], None]) -> None:
        """Start empty. `make_room` deletes kept journals until the rest fits or none is left."""
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.num_running = 0
        self.pending_bytes = 0  # in memory, of all journals
        self.make_room = make_room

    def add(self, size: int, held_bytes: int) -> None:
        """Take `size` bytes for a program whose journal has `held_bytes` with them.

        Raises:
            JournalFull: the space is used up, and the program has more than its equal share.
        """
        self.used_bytes += size
        if self.used_bytes > self.limit_bytes:
            self.make_room()
            share = self.limit_bytes // max(1, self.num_running)
            if self.used_bytes > self.limit_bytes and held_bytes > share:
                self.used_bytes -= size
                raise JournalFull(limit=held_bytes - size)
