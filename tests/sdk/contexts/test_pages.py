"""Contexts that are made of pages, and pages that are made of contexts."""

from __future__ import annotations

import pytest

import inferlet
from inferlet import Context, KvPage, errors
from tests.sdk.host.harness import held, run
from tests.sdk.host.mini_host import MiniHost

PROMPT = list(b"Hello, world. What a day!")


def filled(tokens: list[int], page_size: int) -> list[KvPage]:
    """Pages with all tokens but the last, computed by calls on pages."""
    pages = inferlet.alloc_kvpage(-(-len(tokens) // page_size))
    embeds = inferlet.alloc_emb(len(tokens) - 1)
    inferlet.embed_txt(tokens[:-1], range(len(tokens) - 1), embeds)
    inferlet.forward([], embeds, pages)
    inferlet.dealloc_emb(embeds)
    return pages


async def next_of(pages: list[KvPage], token: int, at: int) -> int:
    """The token that follows `token` at a position behind what pages hold."""
    (embed,) = inferlet.alloc_emb(1)
    inferlet.embed_txt(token, at, embed)
    inferlet.forward(pages, embed, pages, embed, okv_offset=at)
    best = (await inferlet.get_next_dist(embed)).max_index()
    inferlet.dealloc_emb(embed)
    return best


async def continued(tokens: list[int], count: int = 6) -> list[int]:
    async with Context() as ctx:
        ctx.fill_tokens(tokens)
        await ctx.generate_until(max_tokens=count)
        return ctx.tokens


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("count", [1, 2, 5, len(PROMPT)])
def test_a_context_goes_to_pages_and_back(page_size: int, count: int) -> None:
    host, tokens = MiniHost(page_size=page_size, per_wait=5), PROMPT[:count]

    async def main() -> None:
        wanted = await continued(tokens)
        async with Context() as ctx:
            ctx.fill_tokens(tokens)
            pages = await ctx.pages()
            assert len(pages) == (count - 1) // page_size + 1
            assert await next_of(pages, tokens[-1], count - 1) == wanted[count]
            async with await Context.from_pages(pages, tokens) as made:
                [fork] = made.fork()
                inferlet.dealloc_kvpage(pages)
                await made.generate_until(max_tokens=6)
                await fork.generate_until(max_tokens=6)
                assert made.tokens == fork.tokens == wanted
                made.rollback(6)
                await made.generate_until(max_tokens=6)
                assert made.tokens == wanted
                fork.close()
            await ctx.generate_until(max_tokens=6)
            assert ctx.tokens == wanted

    run(host, main)
    assert held(host) == (0, 0, 0)


def test_pages_that_the_program_filled_become_a_context() -> None:
    host = MiniHost(page_size=4, per_wait=3)

    async def main() -> None:
        pages = filled(PROMPT, 4)
        made = await Context.from_pages(pages, PROMPT)
        await made.generate_until(max_tokens=6)
        assert made.tokens == await continued(PROMPT)
        made.close()
        inferlet.dealloc_kvpage(pages)

    run(host, main)
    assert held(host) == (0, 0, 0)


def test_hidden_and_dropped_tokens_are_hidden_in_the_pages() -> None:
    host = MiniHost(page_size=4, per_wait=3)

    async def main() -> None:
        async with Context() as ctx:
            ctx.fill_tokens(PROMPT)
            await ctx.flush()
            ctx.mask(range(1, 3))
            ctx.drop(range(6, 14))
            pages, last = await ctx.pages(), len(PROMPT) - 1
            wanted = (await ctx.next_dist()).max_index()
            assert await next_of(pages, PROMPT[last], last) == wanted
            inferlet.dealloc_kvpage(pages)

    run(host, main)
    assert held(host) == (0, 0, 0)


def test_too_few_pages_and_wrong_values_are_refused() -> None:
    host = MiniHost(page_size=4)

    async def main() -> None:
        pages = filled(PROMPT, 4)
        for given, tokens in ((pages[:-2], PROMPT), (pages, [*PROMPT, 1 << 20]), ([1.5], PROMPT)):
            with pytest.raises(errors.InvalidArgument):
                await Context.from_pages(given, tokens)  # type: ignore[arg-type]
        async with Context() as empty:
            with pytest.raises(errors.InvalidArgument):
                await empty.pages()
        inferlet.dealloc_kvpage(pages)

    run(host, main)
    assert held(host) == (0, 0, 0)


def test_a_program_that_may_not_hold_more_pages_is_told_so_and_loses_none() -> None:
    host = MiniHost(page_size=4, page_limit=8)

    async def main() -> None:
        async with Context() as ctx:
            ctx.fill_tokens(PROMPT[:17])
            await ctx.flush()
            with pytest.raises(errors.PageQuotaExceeded):
                await ctx.pages()

    run(host, main)
    assert held(host) == (0, 0, 0)
