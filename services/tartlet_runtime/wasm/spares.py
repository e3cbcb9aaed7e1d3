"""The number of guests to keep instantiated ahead: as many as the busiest two seconds of the last minute asked for.

Pure: callers pass times in.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Demand:
    """Launches of one module, by the second in which clients asked for them.

    Two neighbouring seconds count together, so that no burst is cut in two.

    Example:
        >>> demand = Demand(window_s=60)
        >>> for _ in range(5):
        ...     demand.note(asked_s=10.2)
        >>> demand.note(asked_s=13.0)
        >>> demand.note(asked_s=9.9)  # noted late, because it started late
        >>> demand.peak(now_s=14.0), demand.peak(now_s=71.5), demand.peak(now_s=100.0)
        (6, 1, 0)
    """

    window_s: float = 60.0
    _seconds: dict[int, int] = field(default_factory=dict)  # launches in each second

    def note(self, asked_s: float) -> None:
        """Count one launch. Times may come in any order."""
        second = int(asked_s)
        if second not in self._seconds:
            self._forget(asked_s)
        self._seconds[second] = self._seconds.get(second, 0) + 1

    def peak(self, now_s: float) -> int:
        """Return the launches of the busiest two seconds of the window."""
        self._forget(now_s)
        counts = self._seconds
        return max((count + counts.get(second - 1, 0) for second, count in counts.items()), default=0)

    def _forget(self, now_s: float) -> None:
        for second in [s for s in self._seconds if s < now_s - self.window_s]:
            del self._seconds[second]


def target(peak: int, *, least: int, most: int) -> int:
    """Return how many spares to keep for a peak of launches."""
    return max(min(peak, most), min(least, most))
