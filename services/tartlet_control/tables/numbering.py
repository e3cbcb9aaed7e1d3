"""The numbers of models in the records of programs that began under another control."""

from __future__ import annotations


class Numbering:
    """Translates between a runtime's numbers of models and control's own. They differ only after a restart of control.

    Example:
        >>> numbers = Numbering()
        >>> numbers.note(theirs=0, ours=1)
        >>> numbers.ours(0), numbers.theirs(1), numbers.theirs(0), numbers.ours(2)
        (1, 0, 1, 2)
    """

    __slots__ = ("_ours", "_theirs", "awaited")

    def __init__(self) -> None:
        self.awaited = False
        """Whether the runtime is about to tell its numbers. A list sent before might lack models of its programs, and
        the runtime would have nothing else to tell the next control."""
        self._ours: dict[int, int] = {}
        self._theirs: dict[int, int] = {}

    def note(self, *, theirs: int, ours: int) -> None:
        """Note that a runtime calls a model by another number, or by the same one."""
        self._ours[theirs], self._theirs[ours] = ours, theirs

    def ours(self, theirs: int) -> int:
        """Return control's number of a model that a runtime numbers."""
        return self._ours.get(theirs, theirs)

    def theirs(self, ours: int) -> int:
        """Return the runtime's number of a model. A model that is new to the runtime gets a number that is free."""
        if self._ours and ours not in self._theirs:
            theirs = ours
            while theirs in self._ours:
                theirs += 1
            self.note(theirs=theirs, ours=ours)
        return self._theirs.get(ours, ours)
