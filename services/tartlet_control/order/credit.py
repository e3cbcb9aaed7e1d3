"""How much of an engine's state may be dropped and computed again, compared with what the engine computes (pure).

Memory that a dropped context leaves holds as many tokens as have to be computed again. So programs that push each
other out in turn could compute everything twice, and more. Dropping is paid for in advance instead.
"""

from __future__ import annotations

from math import inf
from typing import Final

SHARE: Final = 0.15
"""Tokens that may be dropped for each token that an engine computes for programs."""


class Credit:
    """The tokens that may be dropped on one engine: earned by what it computes, spent by what gives way.

    Example:
        >>> credit = Credit(most=100)
        >>> credit.earn(400)
        >>> credit.spend(50)
        >>> credit.left
        10.0
    """

    __slots__ = ("_computed", "_most", "left")

    def __init__(self, most: float) -> None:
        """`most`: what is kept at most; what is earned beyond is lost."""
        self.left = 0.0
        """Tokens. Below 0 where programs gave way that had to."""
        self._most = most
        self._computed = 0

    @property
    def most_spent(self) -> float:
        """How many tokens may be spent at once: what is left, or any number if nothing more can be earned."""
        return self.left if self.left < self._most else inf

    def earn(self, computed: int) -> None:
        """Take note of how many tokens the engine has computed in all, without those computed again."""
        if computed > self._computed:
            self.left = min(self._most, self.left + SHARE * (computed - self._computed))
            self._computed = computed

    def spend(self, tokens: int) -> None:
        """Take note that so many tokens will be computed again; less than 0: fewer than was noted before."""
        self.left -= tokens
