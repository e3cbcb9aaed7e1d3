"""What control has made again since it started."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """What was brought to other engines, or back to the same one, since control started."""

    gave_way: int = 0
    places: int = 0
    tokens: int = 0
    paused_s: float = 0.0
    longest_s: float = 0.0

    def went_on(self, paused_s: float) -> None:
        """Count a place that goes on after a pause of so many seconds."""
        self.places += 1
        self.paused_s += paused_s
        self.longest_s = max(self.longest_s, paused_s)
