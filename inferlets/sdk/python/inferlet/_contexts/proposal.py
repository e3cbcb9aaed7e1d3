"""Drafts that one forward pass has verified: what the model itself chooses after each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from inferlet._values.types import Dist, Sampled


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """Drafts behind a context, verified by `Context.propose`, until `Context.accept` takes some of them.

    Example:
        >>> async def main():
        ...     async with Context() as ctx:
        ...         ctx.fill("One, two,")
        ...         verified = await ctx.propose([72, 105])
        ...         print(len(verified.choices), verified.agreed <= 2, len(verified.tokens) == verified.agreed + 1)
        3 True True
    """

    drafts: tuple[int, ...]
    choices: tuple[Sampled, ...]
    """What the sampler chooses: `choices[i]` follows the context and the first i drafts. The last one is missing if the
    context has no position left for it."""
    dists: Sequence[Dist] = field(default=())
    """The distributions that the choices come from, if `propose` was asked for them."""

    @property
    def agreed(self) -> int:
        """How many of the first drafts are what the sampler chooses itself."""
        count = 0
        for draft, choice in zip(self.drafts, self.choices, strict=False):
            if draft != choice.token:
                break
            count += 1
            if choice.ended:
                break
        return count

    @property
    def tokens(self) -> list[int]:
        """The tokens that generation without drafts would give: the drafts that agree, then the sampler's own choice.

        They end with the first stop token.
        """
        taken = self.choices[: self.agreed + 1]
        if any(choice.ended for choice in taken[:-1]):
            taken = taken[:-1]
        return [choice.token for choice in taken]
