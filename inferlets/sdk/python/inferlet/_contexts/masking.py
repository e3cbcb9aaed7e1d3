"""Tokens that a context no longer sees: hidden ones, and dropped ones whose pages are free."""

from __future__ import annotations

from inferlet._contexts.filling import Filling
from inferlet.errors import InvalidArgument


class Masking(Filling):
    """The calls on a context that hide tokens."""

    def mask(self, tokens: range, *, hide: bool = True) -> None:
        """Hide tokens of the context from everything that is computed later, or show them again.

        The tokens keep their positions, and stay in `tokens`. What was computed before stays as it is, so a token that
        saw a hidden one still carries its influence. Forks that exist keep their own view. Later forks inherit this
        one, and compute the tokens of the last page again under it.

        Args:
            tokens: which tokens, by their indices, as `range(4, 20)`.
            hide: False to show them again.

        Raises:
            InvalidArgument: the range isn't within the context, has steps, the context is closed, or another task
                generates from it.

        Example:
            >>> async def main():
            ...     async with Context() as ctx:
            ...         ctx.fill("The password is swordfish. Tell me: ")
            ...         before = (await ctx.next_dist()).probs[0]
            ...         ctx.mask(range(17, 26))
            ...         hidden = (await ctx.next_dist()).probs[0]
            ...         ctx.mask(range(17, 26), hide=False)
            ...         print(hidden == before)
            False
        """
        start, end = self._range("mask", tokens)
        if start < end:
            self._compute_for_mask()
            self._cache.mask(start, end, hide=hide)

    def drop(self, tokens: range) -> None:
        """Hide tokens for ever, and free the pages that hold only such tokens.

        A context of any length can so be computed in a window, with the first tokens kept as attention sinks.
        Positions go on, so the model's last position is the limit still.

        Args:
            tokens: which tokens, by their indices, as `range(4, 20)`. The last token can't be dropped.

        Raises:
            InvalidArgument: the range isn't within the context or holds its last token, has steps, the context is
                closed, or another task generates from it.

        Example:
            >>> async def main():
            ...     async with Context() as ctx:
            ...         ctx.fill("x" * 100)
            ...         await ctx.flush()
            ...         ctx.drop(range(4, 90))  # keeps four tokens as sinks, and a window
            ...         print(ctx.num_pages, len(ctx))
            3 101
        """
        start, end = self._range("drop", tokens)
        if end >= len(self.tokens):
            raise InvalidArgument(argument="tokens", detail="the last token of a context can't be dropped")
        if start < end:
            self._compute_for_mask()
            self._cache.drop(start, end)

    def _range(self, call: str, tokens: range) -> tuple[int, int]:
        """Return the bounds of a range of tokens, once all input is tokens."""
        if not isinstance(tokens, range):
            raise TypeError(f"{call} takes a range, such as range(4, 20), not {tokens!r}")
        self._check_open()
        self._interrupt()
        self._settle_input()
        if tokens.step != 1 or tokens.start < 0 or tokens.stop > len(self.tokens):
            detail = f"{tokens} is not within the {len(self.tokens)} tokens of the context, one after the other"
            raise InvalidArgument(argument="tokens", detail=detail)
        return tokens.start, tokens.stop

    def _compute_for_mask(self) -> None:
        """Compute all tokens but the last, which sees what is hidden next. The last one is computed anew."""
        last = len(self.tokens) - 1
        self._cache.compute(self.tokens, last)
        self._cache.length = min(self._cache.length, last)
