r"""Stop conditions: when generation ends. `|` combines conditions, and the first that holds ends generation.

Example:
    >>> Until("\n") | Length(20)
    Stop(max_tokens=20, until=('\n',), tokens=())

The model's end-of-sequence tokens end generation too, unless the call says `eos=False`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from inferlet._values.arguments import shown, text, token_list, whole
from inferlet.sampling import Sampler


@dataclass(frozen=True)
class Stop:
    """A set of conditions. Generation ends when one of them holds.

    Example:
        >>> Stop() | Length(10) | Length(20)
        Stop(max_tokens=10, until=(), tokens=())
    """

    max_tokens: int | None = None
    until: tuple[str, ...] = ()
    tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check the conditions.

        Raises:
            TypeError: `max_tokens` is no whole number, or a stop string is no text.
            ValueError: `max_tokens` is negative.
        """
        if self.max_tokens is not None:
            whole("max_tokens", self.max_tokens, 0)
        for until in self.until:
            text("Until", until, _instead(until))

    def __or__(self, other: Stop) -> Stop:
        """Combine two conditions: generation ends when either holds."""
        if not isinstance(other, Stop):
            return NotImplemented
        limits = [limit for limit in (self.max_tokens, other.max_tokens) if limit is not None]
        return Stop(min(limits, default=None), self.until + other.until, self.tokens + other.tokens)

    def __repr__(self) -> str:
        return f"Stop(max_tokens={self.max_tokens}, until={self.until}, tokens={self.tokens})"


class Until(Stop):
    r"""Ends generation when the text contains one of these strings. The string is not part of the text.

    Example:
        >>> Until("\n", "END") | StopTokens([7])
        Stop(max_tokens=None, until=('\n', 'END'), tokens=(7,))
    """

    def __init__(self, *texts: str) -> None:
        if "" in texts:
            raise ValueError("Until takes texts that are not empty: every text contains that one")
        super().__init__(until=texts)


class Length(Stop):
    """Ends generation after this many tokens.

    Example:
        >>> async def main():
        ...     ctx = Context()
        ...     ctx.fill("One, two,")
        ...     await ctx.generate_until(Until(".") | Length(3))
        ...     print(len(ctx.tokens))  # 10 tokens of the prompt and 3 generated ones
        13
    """

    def __init__(self, max_tokens: int) -> None:
        super().__init__(max_tokens=max_tokens)


class StopTokens(Stop):
    """Ends generation at one of these tokens. The device itself skips the steps that were queued after it.

    Example:
        >>> StopTokens([2, 7])
        Stop(max_tokens=None, until=(), tokens=(2, 7))
    """

    def __init__(self, tokens: Iterable[int]) -> None:
        super().__init__(tokens=tuple(token_list("StopTokens", tokens)))


def conditions(stop: Stop | str | None, max_tokens: int | None) -> Stop:
    """Combine the arguments of `generate` into one condition.

    Raises:
        TypeError: `stop` is neither a text nor a condition.

    Example:
        >>> conditions("end", 20)
        Stop(max_tokens=20, until=('end',), tokens=())
    """
    found: object = Until(stop) if isinstance(stop, str) else Stop() if stop is None else stop
    if not isinstance(found, Stop):
        told = "the stop condition is a str, or such as Until('end') | Length(20)"
        raise TypeError(f"{told}, not {shown(found)}{_instead(found)}")
    return found if max_tokens is None else found | Length(max_tokens)


def _instead(given: object) -> str:
    if isinstance(given, int):
        return f": give max_tokens={given}"
    if isinstance(given, Sampler) or callable(given):
        return f": give sampler={getattr(given, '__name__', given)}"
    if isinstance(given, (list, tuple)) and given:
        if all(isinstance(each, str) for each in given):
            return f": give Until({', '.join(map(repr, given))})"
        if all(isinstance(each, int) for each in given):
            return f": give StopTokens({shown(given)})"
    return ""


class Scanner:
    """Finds stop strings in text that arrives in pieces, and holds back text that may be the start of one.

    `found` is the stop string that was found; None before.

    Example:
        >>> scanner = Scanner(("END",))
        >>> scanner.feed("to the E"), scanner.feed("N"), scanner.feed("D."), scanner.found
        ('to the ', '', '', 'END')
    """

    def __init__(self, texts: tuple[str, ...]) -> None:
        self._texts = texts
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """Take the next piece; return the text that certainly comes before any stop string."""
        if not self._texts:
            return text
        held = self._held + text
        ends = [(at, len(stop), stop) for stop in self._texts if (at := held.find(stop)) >= 0]
        if ends:
            first, _, self.found = min(ends)  # of two that begin there, the one that is complete first
            self._held = ""
            return held[:first]
        keep = max(_overlap(held, stop) for stop in self._texts)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def rest(self) -> str:
        """Return the text that is still held back. No more text follows."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that is the start of the stop string."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
