"""The times for which a program stood still because a part of the system was gone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Cause: TypeAlias = Literal["worker", "control", "runtime"]
"""The part that was gone. A worker that drained, or whose programs moved to another one, counts as gone."""
KEPT: Final = 16
"""How many pauses of a program are kept one by one."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A time for which a program stood still because a part of the system was gone."""

    cause: str  # "worker", "control" or "runtime"
    seconds: float


class Pauses:
    """A program's pauses: those that are over, and how many go on.

    Example:
        >>> pauses = Pauses()
        >>> pauses.begin()
        >>> pauses.end(Pause("worker", 1.5))
        >>> pauses.go_on, pauses.total_s
        (False, 1.5)
    """

    __slots__ = ("_num_open", "last", "total_s")

    def __init__(self, over: Iterable[Pause] = ()) -> None:
        """Begin with pauses that are over, oldest first."""
        self._num_open = 0
        self.last: deque[Pause] = deque(over, maxlen=KEPT)
        """The last ones that are over, oldest first."""
        self.total_s = sum(pause.seconds for pause in self.last)
        """Seconds of all pauses that are over. Pauses that overlap count each."""

    @property
    def go_on(self) -> bool:
        """Whether the program stands still."""
        return self._num_open > 0

    def begin(self) -> None:
        """Note that a pause begins."""
        self._num_open += 1

    def end(self, pause: Pause) -> None:
        """Note the end of a pause that has begun."""
        self._num_open = max(0, self._num_open - 1)
        self.add(pause)

    def add(self, pause: Pause) -> None:
        """Note a pause that is over, whose beginning was not noted."""
        self.last.append(pause)
        self.total_s += pause.seconds

    def forget_open(self) -> None:
        """Forget the pauses that go on, because who has told of them is gone."""
        self._num_open = 0
