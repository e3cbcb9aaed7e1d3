"""How many guests to keep instantiated ahead: as many as were asked for in the busiest two seconds of late. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Demand:
    """Launches of one program, by second; two neighbours count together, so that no burst is cut in two.

    Example:
        >>> demand = Demand(window_s=60)
        >>> for _ in range(5):
        ...     demand.note(now_s=10.2)
        >>> demand.note(now_s=11.0)
        >>> demand.note(now_s=13.0)
        >>> demand.peak(now_s=14.0), demand.peak(now_s=71.5), demand.peak(now_s=100.0)
        (6, 1, 0)
    """

    window_s: float = 60.0
    _seconds: deque[tuple[int, int]] = field(default_factory=deque)  # (second, launches in it), rising

    def note(self, now_s: float) -> None:
        """Count one launch."""
        second = int(now_s)
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1] = (second, self._seconds[-1][1] + 1)
        else:
            self._seconds.append((second, 1))
        self._forget(now_s)

    def peak(self, now_s: float) -> int:
        """Launches in the busiest two seconds of the window."""
        self._forget(now_s)
        counts = dict(self._seconds)
        return max((count + counts.get(second - 1, 0) for second, count in self._seconds), default=0)

    def _forget(self, now_s: float) -> None:
        while self._seconds and self._seconds[0][0] < now_s - self.window_s:
            self._seconds.popleft()


def target(peak: int, *, least: int, most: int) -> int:
    """How many spares to keep for a peak of launches."""
    return max(min(peak, most), min(least, most))
