r"""When generation ends. Conditions combine with `|`: the first that holds ends it.

Example:
    >>> Until("\n") | Length(20)
    Stop(max_tokens=20, until=('\n',), tokens=())

The model's own end-of-sequence tokens end generation too, unless `generate(..., eos=False)`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Stop:
    """A set of conditions, any of which ends generation."""

    max_tokens: int | None = None
    until: tuple[str, ...] = ()
    tokens: tuple[int, ...] = ()

    def __or__(self, other: Stop) -> Stop:
        """Ends where either ends."""
        limits = [limit for limit in (self.max_tokens, other.max_tokens) if limit is not None]
        return Stop(min(limits, default=None), self.until + other.until, self.tokens + other.tokens)

    def __repr__(self) -> str:
        return f"Stop(max_tokens={self.max_tokens}, until={self.until}, tokens={self.tokens})"


class Until(Stop):
    """Ends when the text contains one of these strings, which is left out of it."""

    def __init__(self, *texts: str) -> None:
        super().__init__(until=tuple(text for text in texts if text))


class Length(Stop):
    """Ends after this many tokens."""

    def __init__(self, max_tokens: int) -> None:
        super().__init__(max_tokens=max_tokens)


class StopTokens(Stop):
    """Ends when one of these tokens is generated; the device itself then skips what was queued behind it."""

    def __init__(self, tokens: Iterable[int]) -> None:
        super().__init__(tokens=tuple(tokens))


class Scanner:
    """Finds stop strings in text that arrives in pieces, and holds back what may become one.

    Example:
        >>> scanner = Scanner(("END",))
        >>> scanner.feed("to the E"), scanner.feed("N"), scanner.feed("D."), scanner.found
        ('to the ', '', '', True)
    """

    def __init__(self, texts: tuple[str, ...]) -> None:
        self._texts = texts
        self._held = ""
        self.found = False

    def feed(self, text: str) -> str:
        """The text that is now known to come before any stop string."""
        if not self._texts:
            return text
        held = self._held + text
        ends = [at for at in (held.find(stop) for stop in self._texts) if at >= 0]
        if ends:
            self.found = True
            self._held = ""
            return held[: min(ends)]
        keep = max(_overlap(held, stop) for stop in self._texts)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def rest(self) -> str:
        """What is still held back, when nothing more will come."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that a stop string begins with."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
