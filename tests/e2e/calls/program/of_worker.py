"""Cases of the calls that the worker answers."""

from computing import TEXT, computed, holds, near, of_a_context, seen, tabled

import inferlet
from inferlet import Greedy


async def embed_txt() -> None:
    assert near(await computed(), await of_a_context())
    assert not near(await computed([*TEXT[:-1], 72]), await computed())


async def forward() -> None:
    assert near(await computed(), await of_a_context())
    assert not near(await computed(TEXT[1:]), await computed())


async def forward_with_mask() -> None:
    size = inferlet.get_kv_page_size()
    columns = size * 2
    hidden = [[column != 1 for column in range(columns)] + [True]]
    assert not near(await computed(mask=hidden), await computed())
    assert near(await computed(mask=hidden), await computed(hide=1))


async def forward_with_adapter() -> None:
    (adapter,) = await inferlet.get_all_adapters()
    assert not near(await computed(adapter=adapter), await computed())


async def copy_kvpage() -> None:
    (source, target), embeds = inferlet.alloc_kvpage(2), inferlet.alloc_emb(len(TEXT))
    inferlet.embed_txt(TEXT, range(len(TEXT)), embeds)
    last = len(TEXT) - 1
    inferlet.forward([], embeds[:last], [source])
    inferlet.copy_kvpage(source, target, size=last)
    inferlet.forward([target], embeds[last:], [target], embeds[last:], okv_offset=last)
    assert near(seen(await inferlet.get_next_dist(embeds[last], top_k=8)), await of_a_context())


async def copy_table() -> None:
    async with inferlet.Context() as ctx:
        ctx.fill_tokens(TEXT)
        pages, last = await ctx.pages(), len(TEXT) - 1
        (embed,) = inferlet.alloc_emb(1)
        inferlet.embed_txt(TEXT[last], last, embed)
        inferlet.forward(pages, embed, pages, embed, okv_offset=last)
        assert near(seen(await inferlet.get_next_dist(embed, top_k=8)), await of_a_context())
        async with await inferlet.Context.from_pages(pages, TEXT) as made:
            assert near(seen(await made.next_dist(top_k=8)), await of_a_context())
            fork = made.fork()[0]
            assert await fork.generate_until(max_tokens=5) == await ctx.generate_until(max_tokens=5)
            fork.close()
    inferlet.dealloc_kvpage(pages)
    inferlet.dealloc_emb(embed)
    await holds(pages=0, embeds=0)


async def mask_kvpage() -> None:
    assert not near(await computed(hide=1), await computed())


async def get_next_dist() -> None:
    dist = await computed()
    assert len(dist) == 8
    assert [p for _, p in dist] == sorted((p for _, p in dist), reverse=True)
    assert 0 < sum(p for _, p in dist) <= 1.0001


async def sample() -> None:
    best = (await of_a_context())[0][0]
    async with inferlet.Context() as ctx:
        ctx.fill_tokens(TEXT)
        assert (await ctx.step(Greedy())).token == best
    embeds, slots = inferlet.alloc_emb(len(TEXT)), inferlet.alloc_slot(1)
    inferlet.embed_txt(TEXT, range(len(TEXT)), embeds)
    inferlet.forward([], embeds, oemb=embeds[-1:])
    told = await inferlet.sample(embeds[-1], slots, with_bytes=True)
    assert (told.token, told.token_bytes) == (best, await inferlet.detokenize_bytes(best))


async def forward_table() -> None:
    assert near(await tabled(), await of_a_context())


async def mask_table() -> None:
    assert not near(await tabled(change=lambda made: inferlet.mask_table(made, 1, 1)), await tabled())
