"""The pollables of one guest's timers."""

from __future__ import annotations


class Timers:
    """When each is ready, by its rep.

    Example:
        >>> timers = Timers()
        >>> rep = timers.add(5_000)
        >>> timers.due_ns(rep), timers.due_ns(99)
        (5000, 0)
    """

    __slots__ = ("_due_ns", "_next")

    def __init__(self) -> None:
        """Start with none."""
        self._due_ns: dict[int, int] = {}
        self._next = 1

    def add(self, due_ns: int) -> int:
        """Rep of a pollable that is ready when the guest's clock shows `due_ns`."""
        rep = self._next
        self._next += 1
        self._due_ns[rep] = due_ns
        return rep

    def due_ns(self, rep: int) -> int:
        """When a pollable is ready; 0 (long ago) for those of streams."""
        return self._due_ns.get(rep, 0)

    def drop(self, rep: int) -> None:
        """Forget a pollable."""
        self._due_ns.pop(rep, None)
