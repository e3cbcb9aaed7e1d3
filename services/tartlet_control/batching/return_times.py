"""Programs that were just answered: which of them are expected back at once, and until when to wait for them.

Two groups of programs without run-ahead that once missed each other would take turns on the engine for ever, and each
step would pay its fixed part for half of the load. They meet again if the engine waits for programs that come back
sooner than another step's fixed part would take. If many programs take longer than that, the engine doesn't wait for a
whole group: the first of the group compute while the others are on their way.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Final

from tartlet_control.tables.programs import CommandQueue

WORTH: Final = 0.85
"""Share of a step's fixed part: nobody waits for a program that takes longer than this to come back."""
APART: Final = 1.25
"""Share of a step's fixed part: a program that takes longer than this is better met by a step of its own."""
MANY: Final = 0.25
"""If this share of a group returns later than `APART`, split the group."""
PATIENCE: Final = 1.5
"""How long to wait for a program, as a multiple of the time that it usually takes."""
SLACK_S: Final = 0.0005
"""Added to each wait, because frames don't arrive to the microsecond."""
_WEIGHT: Final = 0.25  # of the newest time in the average
_MOST: Final = 4  # a time counts as at most so many averages: one tool call must not hide how soon a program usually is


def patience_s(usual_s: float) -> float:
    """Return how long to wait for a program that usually takes so long to come back, in seconds."""
    return PATIENCE * usual_s + SLACK_S


class ReturnTimes:
    """Knows for one engine which queues were answered last, and which of them are expected back."""

    __slots__ = ("_expected", "_until", "split")

    def __init__(self) -> None:
        self._expected: dict[CommandQueue, None] = {}
        self._until = 0.0
        self.split = False
        """Whether the programs that were answered last may come back in several groups."""

    def answered(self, queues: Iterable[CommandQueue], fixed_s: float, now: float) -> None:
        """Note that a step of these queues was answered. Another step, in place of a larger one, costs `fixed_s`."""
        most, apart = WORTH * fixed_s, APART * fixed_s
        waiting = late = 0
        for queue in queues:
            if queue.pending or queue.dispatched != queue.settled or not queue.program.live:
                continue
            queue.answered_s = now
            waiting += 1
            if queue.returns_s <= most:
                self._expected[queue] = None
                self._until = max(self._until, now + patience_s(queue.returns_s))
            elif apart < queue.returns_s < inf:
                late += 1
        self.split = late > 1 and late >= MANY * waiting

    def back(self, queue: CommandQueue, now: float) -> None:
        """Note the first engine command of a queue since its last answer."""
        took, queue.answered_s = now - queue.answered_s, 0.0
        old = queue.returns_s
        queue.returns_s = took if old == inf else old + _WEIGHT * (min(took, _MOST * old + SLACK_S) - old)
        self._expected.pop(queue, None)

    def forget(self, queue: CommandQueue) -> None:
        """Expect nothing from a queue that has ended."""
        self._expected.pop(queue, None)

    def clear(self) -> None:
        """Expect nothing, because the engine is gone."""
        self._expected.clear()

    def expected(self, now: float) -> tuple[int, float]:
        """Return how many queues should be back any moment, and until when to wait for them."""
        if now >= self._until:
            self._expected.clear()
        return len(self._expected), self._until
