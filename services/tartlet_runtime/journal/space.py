"""What all journals of a runtime share: the space on disk, and the memory of what isn't stored yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tartlet_common.errors.registry import JournalFull, Overloaded

BUFFERED_BYTES: Final = 8 << 20
"""Bytes of all journals that may wait for the end of a turn, and those of one program's step more."""


class Space:
    """The space that the journals of running programs share with the journals that were kept."""

    __slots__ = ("limit_bytes", "make_room", "num_running", "pending_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        """Start empty."""
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.num_running = 0
        self.pending_bytes = 0
        """Bytes in memory of all journals that were not handed to the store."""
        self.make_room: Callable[[], None] = _nothing
        """Deletes kept journals until the rest fits or none is left."""

    @property
    def is_crowded(self) -> bool:
        """Whether the store must take what is pending before programs add more."""
        return self.pending_bytes > BUFFERED_BYTES

    def begin(self, size: int) -> None:
        """Take `size` bytes for a new program.

        Raises:
            Overloaded: the journals of running programs take all the space.
        """
        self.used_bytes += size
        if self.used_bytes > self.limit_bytes:
            self.make_room()
            if self.used_bytes > self.limit_bytes:
                self.used_bytes -= size
                raise Overloaded(what="the space of journals (journals_bytes)", limit=self.limit_bytes)
        self.num_running += 1

    def end(self, size: int) -> None:
        """Give back what an ended program has taken."""
        self.used_bytes -= size
        self.num_running -= 1

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


def _nothing() -> None:
    """No-op until a store keeps journals."""
