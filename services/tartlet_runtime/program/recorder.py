"""One program's journal, and what of the program waits until the journal is stored.

Whatever leaves the program waits until the deliveries that caused it are stored: commands for control, output, the end.
Where a turn is stored before anything of the turn leaves (journals as files), nothing waits here.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import Final

from tartlet_common.errors.registry import Superseded, TartletError
from tartlet_runtime.journal.journal import Journal
from tartlet_runtime.journal.journals import Journals
from tartlet_runtime.journal.records import Kind

Action = Callable[[], None]
UNRECORDED: Final = (1 << 64) - 1
"""Stands for the number of stored records of a program that goes on without its journal."""


class Recorder:
    """Writes what one program is told to its journal, and holds back what leaves it."""

    __slots__ = (
        "_barrier", "_degrades", "_held", "_journals", "_lost", "_room", "_stored", "_told", "heard", "is_broken",
        "is_past", "journal",
    )  # fmt: skip

    def __init__(
        self,
        journal: Journal,
        journals: Journals,
        *,
        lost: Callable[[TartletError], None],
        room: Action,
        stored: Callable[[int], None] | None = None,
        degrades: bool = False,
        heard: int = 0,
    ) -> None:
        """Begin with nothing held back.

        Args:
            journal: the program's.
            journals: where it is stored.
            lost: called when the journal is lost, with what is to end the program.
            room: called when the program may take deliveries again.
            stored: called with how many of control's records are stored, or `UNRECORDED`; None: nobody wants to know.
            degrades: whether the program goes on without its journal instead.
            heard: how many of control's records are stored now.
        """
        self.journal = journal
        self.is_broken = False
        """Whether nothing is recorded any more."""
        self.is_past = False
        """Whether the program's guest is told its past: that the journal is stored is told once the guest knows it."""
        self._journals = journals
        self._lost = lost
        self._room = room
        self._degrades = degrades
        self._stored = stored
        self.heard = heard
        self._told = -1  # how many of them were told to be stored; that the journal is stored is told, too
        self._barrier = 0  # the turn of the last record
        self._held: deque[tuple[int, Action]] = deque()

    @property
    def starves(self) -> bool:
        """Whether the program gets no deliveries now; `room` is called when it does."""
        if self._journals.full and not self.is_broken:
            self._journals.starve(self)
            return True
        return False

    def begin(self) -> None:
        """Store the header with this turn, unless it is stored already."""
        if self.journal.pending:
            self._added()

    def record(
        self, clock_ns: int, data: bytes, from_control: int = 0, read_to: int = 0, kind: int = Kind.DELIVERY
    ) -> None:
        """Record a delivery, or another thing that the program was told (`Journal.append`).

        Raises:
            JournalFull: it doesn't fit.
        """
        if not self.is_broken:
            self.journal.append(clock_ns, data, from_control, read_to, kind)
            if kind == Kind.DELIVERY:
                self.heard = from_control
            self._added()

    def record_end(self, clock_ns: int, error: TartletError | None, result: str) -> None:
        """Record how the program has ended, so that nobody runs it again."""
        told = {"result": result} if error is None else {"error": error.number, "fields": error.to_json().decode()}
        self.record(clock_ns, json.dumps(told).encode(), kind=Kind.END)

    def _added(self) -> None:
        self._barrier = self._journals.turn
        self._journals.added(self)

    def inherit(self, before: Recorder) -> None:
        """Do what waits for the journal of the run before when this one is stored, which holds the same."""
        while before._held:
            self.leave(before._held.popleft()[1])

    def leave_now(self, action: Action) -> None:
        """Do `action` once all is stored that was recorded, for a caller that is in no turn."""
        if self._journals.immediate:
            self._journals.flush()
        self.leave(action)

    def leave(self, action: Action) -> None:
        """Do `action` once everything that the program was told so far is stored."""
        is_stored = not self._held and self._barrier <= self._journals.stored_turn
        if self._journals.immediate or self.is_broken or is_stored:
            action()
        else:
            self._held.append((self._barrier, action))
            self._journals.wait(self)

    # ---- what the journals say (`journals.Waiter`) --------------------------------------------------------------

    def acknowledge(self, heard: int) -> None:
        """Tell that the journal is stored, and how many of control's records it has, if there are more than before."""
        if self.is_past and heard != UNRECORDED:
            return
        if heard != self._told and self._stored is not None:
            self._told = heard
            self._stored(heard)

    def release(self, turn: int) -> None:
        """Do what waits for this turn, or for an earlier one."""
        held = self._held
        while held and held[0][0] <= turn:
            held.popleft()[1]()
        if held:
            self._journals.wait(self)

    def lose(self, error: TartletError) -> None:
        """Go on without a journal, or drop what waits and end the program.

        A program that another runtime has taken over never goes on here.
        """
        if self.is_broken:
            return
        self.is_broken = True
        held, self._held = self._held, deque()
        if self._degrades and not isinstance(error, Superseded):
            for _, action in held:
                action()
            self._room()
            self.acknowledge(UNRECORDED)
        else:
            self._lost(error)

    def room(self) -> None:
        """Take deliveries again."""
        self._room()
