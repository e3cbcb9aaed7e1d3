"""Forks: what they share, what they compute, and when what they share is freed."""

from __future__ import annotations

import asyncio
import gc

import pytest

from inferlet import Context, Temperature
from tests.sdk.host.harness import held, run, tokens_of
from tests.sdk.host.mini_host import MiniHost
from tests.sdk.host.mini_model import reference_generate

PROMPT = "Hello, world"
PREFIX = len(tokens_of(PROMPT))


@pytest.mark.parametrize("page_size", [1, 4, 13, 14])
def test_forks_share_the_full_pages_of_their_prefix(page_size: int) -> None:
    host = MiniHost(page_size=page_size, per_wait=3)

    async def main() -> list[list[int]]:
        ctx = Context(seed=3)
        ctx.fill(PROMPT)
        forks = ctx.fork(4)
        for i, fork in enumerate(forks):
            fork.fill(f"<{i}>")
        await asyncio.gather(*(fork.generate_until(max_tokens=6) for fork in [*forks, ctx]))
        return [fork.tokens for fork in [*forks, ctx]]

    *forks, parent = run(host, main)
    assert parent == [*tokens_of(PROMPT), *reference_generate(tokens_of(PROMPT), 6)]
    for i, tokens in enumerate(forks):
        prompt = [*tokens_of(PROMPT), *f"<{i}>".encode()]
        assert tokens == [*prompt, *reference_generate(prompt, 6)]
    assert held(host) == (0, 0, 0)
    shared = (PREFIX - 1) // page_size
    ends = [-(-(len(tokens) - 1) // page_size) for tokens in [*forks, parent]]
    assert host.peak_pages <= shared + sum(end - shared for end in ends)
    # Full pages are computed once. Each fork computes the rest of the prefix, its text and what it generates.
    rest = PREFIX - shared * page_size
    assert host.computed_tokens == shared * page_size + 4 * (rest + 3 + 5) + (rest + 5)


def test_forks_of_forks_outlive_their_parents() -> None:
    host = MiniHost(page_size=2, per_wait=1)

    async def main() -> list[int]:
        ctx = Context()
        ctx.fill(PROMPT)
        [child] = ctx.fork()
        ctx.close()
        child.fill("abc")
        [grandchild] = child.fork()
        child.close()
        del ctx, child
        gc.collect()
        other = Context()  # may take over a queue of the closed ones, and their ids
        other.fill("something else entirely")
        await asyncio.gather(grandchild.generate_until(max_tokens=5), other.generate_until(max_tokens=5))
        other.close()
        return grandchild.tokens

    prompt = [*tokens_of(PROMPT), *b"abc"]
    assert run(host, main) == [*prompt, *reference_generate(prompt, 5)]
    assert held(host) == (0, 0, 0)


def test_a_fork_that_is_closed_at_once_frees_nothing_that_is_still_to_be_allocated() -> None:
    host = MiniHost(page_size=5, per_wait=1)

    async def main() -> None:
        ctx = Context()
        ctx.fill(PROMPT)
        for fork in ctx.fork(2):
            fork.close()
        ctx.close()
        other = Context()
        other.fill("x")
        await other.generate_until(max_tokens=30)
        other.close()

    run(host, main)
    assert held(host) == (0, 0, 0)
    assert all(lane.cause is None for lane in host.lanes.values())


def test_forks_draw_noise_of_their_own_that_does_not_depend_on_timing() -> None:
    def generate(per_wait: int) -> list[list[int]]:
        async def main() -> list[list[int]]:
            ctx = Context(seed=11)
            ctx.fill(PROMPT)
            forks = ctx.fork(3)
            await asyncio.gather(*(f.generate_until(max_tokens=12, sampler=Temperature(1.0)) for f in forks))
            return [fork.tokens for fork in forks]

        return run(MiniHost(per_wait=per_wait), main)

    texts = generate(1)
    assert len({tuple(text) for text in texts}) == 3
    assert texts == generate(100)
