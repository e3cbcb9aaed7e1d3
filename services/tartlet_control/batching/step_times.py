"""How long an engine's steps take: averages for each order of magnitude of computed tokens, and lines between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_STEPS: Final = 10
"""About so many count: of fewer it is their mean, so that a slow first one is soon outweighed."""


@dataclass(slots=True)
class _Steps:
    """Steps of about one size, averaged."""

    tokens: float = 0.0
    seconds: float = 0.0
    count: int = 0

    def add(self, tokens: int, seconds: float) -> None:
        self.count = min(_STEPS, self.count + 1)
        self.tokens += (tokens - self.tokens) / self.count
        self.seconds += (seconds - self.seconds) / self.count


class StepTimes:
    """What was seen of one size stays until it is seen again: a load of one size tells nothing of the others.

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
        """A step of `tokens` took `seconds`."""
        if not tokens:
            return
        size = tokens.bit_length()
        steps = self._sizes.get(size)
        if steps is None:
            steps = self._sizes[size] = _Steps()
            self._sizes = dict(sorted(self._sizes.items()))
        steps.add(tokens, seconds)

    def predict(self, tokens: float) -> float:
        """Seconds that a step of `tokens` will take: never less than one of fewer; 0 before the first one was seen."""
        below_tokens = below_s = slope = 0.0
        for steps in self._sizes.values():
            seconds = max(below_s, steps.seconds)
            if below_tokens:
                slope = (seconds - below_s) / (steps.tokens - below_tokens)
            if tokens <= steps.tokens:
                return seconds - slope * (steps.tokens - tokens)
            below_tokens, below_s = steps.tokens, seconds
        return below_s + slope * (tokens - below_tokens)

    def beyond_one(self, tokens: int) -> float:
        """Seconds that two steps which share `tokens` take beyond one of all: what a step costs by itself."""
        return max(0.0, 2 * self.predict(tokens / 2) - self.predict(tokens))
