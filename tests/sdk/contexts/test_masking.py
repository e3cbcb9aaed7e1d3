"""Hidden and dropped tokens of a `Context`, against a reference that leaves them out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from inferlet import Context, errors
from tests.sdk.host.harness import held, run, tokens_of
from tests.sdk.host.mini_host import MiniHost
from tests.sdk.host.mini_model import choose, probabilities, state_of

PROMPT = "Hello, world. What a day!"
PREFIX = list(tokens_of(PROMPT))
GREEDY = (0.0, 0, 1.0, 0.0, 0, 0)


class Reference:
    """A plain sequence of tokens, some of which are hidden from those that come later."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens: list[int] = []
        self.states: list[int] = []
        self.hidden: set[int] = set()
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            seen = [(i, state) for i, state in enumerate(self.states) if i not in self.hidden]
            self.states.append(state_of(token, len(self.tokens), seen))
            self.tokens.append(token)

    def generate(self, n: int) -> None:
        for _ in range(n):
            at = len(self.tokens) - 1
            self.tokens[at:], self.states[at:], last = [], [], self.tokens[at]
            self.extend([last])  # the last token is computed with what is hidden by now
            self.extend([choose(probabilities(self.states[-1], at, {}), GREEDY, at)])


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_hidden_tokens_are_not_seen_until_they_are_shown_again(page_size: int) -> None:
    host = MiniHost(page_size=page_size, per_wait=7)

    async def main() -> list[int]:
        async with Context() as ctx:
            ctx.fill(PROMPT)
            for hidden, hide in ((range(2, 9), True), (range(5, 15), True), (range(7, 11), False)):
                ctx.mask(hidden, hide=hide)
                await ctx.generate_until(max_tokens=6)
            return ctx.tokens

    reference = Reference(PREFIX)
    for hidden, hide in ((set(range(2, 9)), True), (set(range(5, 15)), True), (set(range(7, 11)), False)):
        reference.hidden = reference.hidden | hidden if hide else reference.hidden - hidden
        reference.generate(6)
    assert run(host, main) == reference.tokens
    assert held(host) == (0, 0, 0)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_dropped_tokens_are_never_seen_again_and_their_pages_are_free(page_size: int) -> None:
    host = MiniHost(page_size=page_size, page_limit=1 + -(-24 // page_size) + 32 // page_size)

    async def main() -> list[int]:
        async with Context() as ctx:
            ctx.fill(PROMPT)
            for _ in range(20):
                await ctx.generate_until(max_tokens=4)
                ctx.drop(range(3, len(ctx) - 8))
            return ctx.tokens

    reference = Reference(PREFIX)
    for _ in range(20):
        reference.generate(4)
        reference.hidden |= set(range(3, len(reference.tokens) - 8))
    assert run(host, main) == reference.tokens, "with far fewer pages than tokens"
    assert held(host) == (0, 0, 0)


@pytest.mark.parametrize("page_size", [3, 4, 16])
def test_forks_and_rollbacks_keep_what_is_hidden(page_size: int) -> None:
    host = MiniHost(page_size=page_size, per_wait=5)

    async def main() -> tuple[list[int], list[int], list[int]]:
        async with Context() as ctx:
            ctx.fill(PROMPT)
            await ctx.flush()
            [before] = ctx.fork()
            ctx.mask(range(1, len(PREFIX) - 1))
            [after] = ctx.fork()
            await ctx.generate_until(max_tokens=5)
            ctx.mask(range(len(PREFIX), len(PREFIX) + 4))
            ctx.rollback(5)  # the tokens that come there next are seen
            await ctx.generate_until(max_tokens=7)
            await before.generate_until(max_tokens=3)
            await after.generate_until(max_tokens=7)
            return ctx.tokens, before.tokens, after.tokens

    masked, before, after = run(host, main)
    plain, other = Reference(PREFIX), Reference(PREFIX)
    plain.generate(3)
    assert before == plain.tokens, "a fork from before has a view of its own"
    other.hidden = set(range(1, len(PREFIX) - 1))
    other.generate(7)
    assert masked == other.tokens
    fork = Reference(PREFIX[: (len(PREFIX) - 1) // page_size * page_size])
    fork.hidden = set(other.hidden)
    fork.extend(PREFIX[len(fork.tokens) :])
    fork.generate(7)
    assert after == fork.tokens
    assert held(host) == (0, 0, 0)


def test_what_cannot_be_masked_or_dropped_is_refused() -> None:
    async def main() -> None:
        async with Context() as ctx:
            ctx.fill(PROMPT)
            for wrong in (range(1, 1000), range(-1, 3), range(0, 8, 2)):
                with pytest.raises(errors.InvalidArgument, match="is not within the"):
                    ctx.mask(wrong)
            with pytest.raises(TypeError, match="takes a range"):
                ctx.mask((1, 3))  # type: ignore[arg-type]
            with pytest.raises(errors.InvalidArgument, match="the last token"):
                ctx.drop(range(len(PREFIX)))
            ctx.drop(range(16))
            with pytest.raises(errors.InvalidArgument, match="were dropped"):
                ctx.rollback(len(PREFIX) - 10)
            ctx.rollback(len(PREFIX) - 17)

    run(MiniHost(), main)
