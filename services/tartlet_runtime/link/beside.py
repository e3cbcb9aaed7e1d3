"""What travels beside starts, commands and ends of programs, and can wait a little for their frames."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from tartlet_protos import control_pb2

STORED_EVERY_S: Final = 0.1
"""Longest time for which control isn't told what is stored, while frames leave."""
_FOUND_A_FRAME: Final = 512
_HANDLE: Final = Struct("<I")
_COUNT: Final = Struct("<Q")


class Beside:
    """Which of control's records are stored, the name of the journals' store, and whether the runtime stops."""

    def __init__(self, now: Callable[[], float]) -> None:
        """Begin with nothing to tell. `now` is a monotonic clock, in seconds."""
        self.stored: dict[int, int] = {}
        """How many of control's records are stored in the journal of each program, by handle."""
        self.found: list[control_pb2.FoundJournal] | None = None
        """The journals that control asked for; None if there is no list to send."""
        self.stopping = False
        self.named = ""
        """The name of the store that control was told."""
        self._stop_told = False
        self._now = now
        self._told_s = 0.0

    def is_due(self, journals: str) -> bool:
        """Return whether a frame is to leave for this alone."""
        return bool(
            journals != self.named
            or self.found is not None
            or (self.stopping and not self._stop_told)
            or (self.stored and self._now() - self._told_s >= STORED_EVERY_S)
        )

    def take(self, journals: str) -> list[control_pb2.RuntimeFrame]:
        """Return what is due, in a frame of its own: commands may fill theirs."""
        if not self.is_due(journals):
            return []
        frame = control_pb2.RuntimeFrame()
        if self.stored:
            stored, self.stored = self.stored, {}
            frame.stored.handles = b"".join(map(_HANDLE.pack, stored))
            frame.stored.counts = b"".join(map(_COUNT.pack, stored.values()))
            self._told_s = self._now()
        if journals != self.named:
            frame.journals = self.named = journals
        if self.stopping:
            frame.stopping = self._stop_told = True
        return [frame, *self._take_found()]

    def _take_found(self) -> list[control_pb2.RuntimeFrame]:
        found, self.found = self.found, None
        if found is None:
            return []
        frames = [
            control_pb2.RuntimeFrame(found=found[at : at + _FOUND_A_FRAME])
            for at in range(0, max(len(found), 1), _FOUND_A_FRAME)
        ]
        frames[-1].searched = True
        return frames
