"""Programs that have just got an answer, and how soon they usually ask for more.

Two groups of programs without run-ahead that once missed each other would take turns on the engine for ever, each step
paying its fixed part for half of the load. They meet again if the engine waits for those who are back sooner than
another step's fixed part would take. And where many take longer than that, it doesn't wait for all of a group: the
first compute while the others are on their way.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Final

from tartlet_control.tables.programs import CommandQueue

WORTH: Final = 0.85
"""Of a step's fixed part: who takes longer to come back is not waited for."""
APART: Final = 1.25
"""And who takes longer than this is better met by a step of its own."""
MANY: Final = 0.25
"""Of a group: so many such ones, and it is cut."""
PATIENCE: Final = 1.5
"""How many times as long as it usually takes somebody is waited for."""
SLACK_S: Final = 0.0005
"""And how much longer, because frames don't come to the microsecond."""
_WEIGHT: Final = 0.25  # of the newest in the average
_MOST: Final = 4  # times the average count as what they are: one tool call must not hide how it usually is


class ReturnTimes:
    """Of one engine: who was answered last, and is expected."""

    __slots__ = ("_expected", "_until", "cut")

    def __init__(self) -> None:
        self._expected: dict[CommandQueue, None] = {}
        self._until = 0.0
        self.cut = False
        """Whether those who were answered last may come back in several groups."""

    def answered(self, queues: Iterable[CommandQueue], fixed_s: float, now: float) -> None:
        """A step of these was answered; another one instead of a larger one costs `fixed_s`."""
        most, apart = WORTH * fixed_s, APART * fixed_s
        waiting = late = 0
        for queue in queues:
            if queue.pending or queue.dispatched != queue.settled or not queue.program.live:
                continue
            queue.answered_s = now
            waiting += 1
            if queue.returns_s <= most:
                self._expected[queue] = None
                self._until = max(self._until, now + PATIENCE * queue.returns_s + SLACK_S)
            elif apart < queue.returns_s < inf:
                late += 1
        self.cut = late > 1 and late >= MANY * waiting

    def back(self, queue: CommandQueue, now: float) -> None:
        """It asks the engine for more, for the first time since it was answered."""
        took, queue.answered_s = now - queue.answered_s, 0.0
        old = queue.returns_s
        queue.returns_s = took if old == inf else old + _WEIGHT * (min(took, _MOST * old + SLACK_S) - old)
        self._expected.pop(queue, None)

    def forget(self, queue: CommandQueue) -> None:
        """It has ended."""
        self._expected.pop(queue, None)

    def clear(self) -> None:
        """The engine has gone."""
        self._expected.clear()

    def expected(self, now: float) -> tuple[int, float]:
        """How many should be back any moment, and until when they are waited for."""
        if now >= self._until:
            self._expected.clear()
        return len(self._expected), self._until
