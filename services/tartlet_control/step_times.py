"""How long an engine's steps take: averages for each order of magnitude of computed tokens, and lines between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_WEIGHT: Final = 0.1
"""Of the newest step in its average: some ten steps count."""


@dataclass(slots=True)
class _Steps:
    """Steps of about one size, averaged."""

    tokens: float
    seconds: float


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
            self._sizes[size] = _Steps(tokens, seconds)
            self._sizes = dict(sorted(self._sizes.items()))
            return
        steps.tokens += _WEIGHT * (tokens - steps.tokens)
        steps.seconds += _WEIGHT * (seconds - steps.seconds)

    def predict(self, tokens: float) -> float:
        """Seconds that a step of `tokens` will take: never less than one of fewer; 0 before the first one was seen."""
        below: _Steps | None = None
        slope = 0.0
        for steps in self._sizes.values():
            if below is not None:
                slope = max(0.0, (steps.seconds - below.seconds) / (steps.tokens - below.tokens))
            if tokens <= steps.tokens:
                return steps.seconds - slope * (steps.tokens - tokens)
            below = steps
        return 0.0 if below is None else below.seconds + slope * (tokens - below.tokens)

    def beyond_one(self, tokens: int) -> float:
        """Seconds that two steps which share `tokens` take beyond one of all: what a step costs by itself."""
        return max(0.0, 2 * self.predict(tokens / 2) - self.predict(tokens))
