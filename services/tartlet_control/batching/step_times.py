"""Predicts how long an engine's steps take, from averages for each power of two of computed tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_STEPS: Final = 10
"""Steps that an average covers. Of fewer steps it is the mean, so that a slow first step soon matters little."""


@dataclass(slots=True)
class _Steps:
    """The average of the steps of about one size."""

    tokens: float = 0.0
    seconds: float = 0.0
    count: int = 0

    def add(self, tokens: int, seconds: float) -> None:
        self.count = min(_STEPS, self.count + 1)
        self.tokens += (tokens - self.tokens) / self.count
        self.seconds += (seconds - self.seconds) / self.count


class StepTimes:
    """Averages by size of step, and straight lines between them.

    An average stays until a step of its size is seen again: a load of one size tells nothing of other sizes.

    Example:
        >>> times = StepTimes()
        >>> for tokens in (10, 20, 40):
        ...     times.add(tokens, 0.002 + 0.001 * tokens)
        >>> round(times.predict(30), 6)
        0.032
        >>> round(times.beyond_one(32), 6)
        0.002
    """

    __slots__ = ("_sizes",)

    def __init__(self) -> None:
        self._sizes: dict[int, _Steps] = {}  # by the number of bits of how many tokens, ascending

    def add(self, tokens: int, seconds: float) -> None:
        """Add a step of `tokens` that took `seconds`."""
        if not tokens:
            return
        size = tokens.bit_length()
        steps = self._sizes.get(size)
        if steps is None:
            steps = self._sizes[size] = _Steps()
            self._sizes = dict(sorted(self._sizes.items()))
        steps.add(tokens, seconds)

    def predict(self, tokens: float) -> float:
        """Predict the seconds of a step of `tokens`: never less than for fewer tokens, and 0 before the first step."""
        below_tokens = below_s = slope = 0.0
        for steps in self._sizes.values():
            seconds = max(below_s, steps.seconds)
            if below_tokens:
                slope = (seconds - below_s) / (steps.tokens - below_tokens)
            if tokens <= steps.tokens:
                return seconds - slope * (steps.tokens - tokens)
            below_tokens, below_s = steps.tokens, seconds
        return below_s + slope * (tokens - below_tokens)

    def least(self, tokens: int) -> float:
        """Predict the seconds of a step of at most `tokens`; below the smallest step that was seen, in proportion."""
        seen = next((steps.tokens for steps in self._sizes.values()), 0.0)
        return self.predict(tokens) * min(1.0, tokens / seen) if seen else 0.0

    def work(self, tokens: int, most: int) -> float:
        """Predict the seconds that `tokens` take in steps of at most `most` tokens; 0 before the first step."""
        full, rest = divmod(tokens, most)
        return full * self.predict(most) + (self.predict(rest) if rest else 0.0)

    def beyond_one(self, tokens: int) -> float:
        """Predict how many seconds two steps of half of `tokens` each take beyond one step of all of them."""
        return max(0.0, 2 * self.predict(tokens / 2) - self.predict(tokens))
