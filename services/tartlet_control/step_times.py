"""How long an engine's steps take: a line through the recent ones, seconds over computed tokens."""

from __future__ import annotations

from typing import Final

_DECAY: Final = 0.95
"""Weight that a step keeps when the next one comes: some twenty steps count."""


class StepTimes:
    """Least squares with forgetting.

    Example:
        >>> times = StepTimes()
        >>> for tokens in (10, 20, 30):
        ...     times.add(tokens, 0.002 + 0.001 * tokens)
        >>> round(times.predict(25), 6)
        0.027
    """

    __slots__ = ("_s", "_t", "_ts", "_tt", "_w")

    def __init__(self) -> None:
        self._w = self._t = self._s = self._tt = self._ts = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """A step of `tokens` took `seconds`."""
        self._w = self._w * _DECAY + 1.0
        self._t = self._t * _DECAY + tokens
        self._s = self._s * _DECAY + seconds
        self._tt = self._tt * _DECAY + tokens * tokens
        self._ts = self._ts * _DECAY + tokens * seconds

    def predict(self, tokens: int) -> float:
        """Seconds that a step of `tokens` will take; 0 before the first one was seen."""
        if not self._w:
            return 0.0
        mean_t, mean_s = self._t / self._w, self._s / self._w
        spread = self._tt / self._w - mean_t * mean_t
        slope = (self._ts / self._w - mean_t * mean_s) / spread if spread > 1e-6 else 0.0
        return max(0.0, mean_s + max(0.0, slope) * (tokens - mean_t))
