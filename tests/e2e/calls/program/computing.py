"""What the cases share: distributions computed in several ways, and checks."""

from collections.abc import Awaitable, Callable, Sequence

import inferlet
from inferlet import Adapter, Dist, PageTable

TEXT = [72, 101, 108, 108, 111]
Seen = list[tuple[int, float]]


def seen(dist: Dist) -> Seen:
    return list(zip(dist.tokens, dist.probs, strict=True))


async def computed(
    tokens: Sequence[int] = TEXT,
    *,
    adapter: Adapter | None = None,
    mask: list[list[bool]] | None = None,
    hide: int | None = None,
) -> Seen:
    """The distribution after tokens that one `forward` computes into pages."""
    size = inferlet.get_kv_page_size()
    pages, embeds = inferlet.alloc_kvpage(-(-len(tokens) // size) + 1), inferlet.alloc_emb(len(tokens))
    inferlet.embed_txt(tokens, range(len(tokens)), embeds)
    inferlet.forward([], embeds[:-1], pages, okv_offset=0, adapter=adapter)
    if hide is not None:
        inferlet.mask_kvpage(pages[0], 1 << hide)
    at = len(tokens) - 1
    last, okv, offset = embeds[-1:], pages[at // size :], at % size
    inferlet.forward(pages, last, okv, last, okv_offset=offset, adapter=adapter, mask=mask)
    dist = await inferlet.get_next_dist(embeds[-1], top_k=8)
    inferlet.dealloc_kvpage(pages)
    inferlet.dealloc_emb(embeds)
    return seen(dist)


async def tabled(tokens: Sequence[int] = TEXT, *, change: Callable[[PageTable], None] | None = None) -> Seen:
    """The distribution after tokens that `forward_table` computes."""
    size = inferlet.get_kv_page_size()
    made, embeds = inferlet.table(new_rows=len(tokens) // size + 2), inferlet.alloc_emb(len(tokens))
    inferlet.embed_txt(tokens, range(len(tokens)), embeds)
    inferlet.forward_table(made, 0, embeds[:-1])
    if change is not None:
        change(made)
    inferlet.forward_table(made, len(tokens) - 1, embeds[-1:], embeds[-1:])
    dist = await inferlet.get_next_dist(embeds[-1], top_k=8)
    inferlet.table(made)
    inferlet.dealloc_emb(embeds)
    return seen(dist)


async def of_a_context(tokens: Sequence[int] = TEXT) -> Seen:
    async with inferlet.Context() as ctx:
        ctx.fill_tokens(tokens)
        return seen(await ctx.next_dist(top_k=8))


def near(some: Seen, others: Seen) -> bool:
    """Whether two distributions are equal but for rounding."""
    return [t for t, _ in some] == [t for t, _ in others] and all(
        abs(p - q) < 1e-3 for (_, p), (_, q) in zip(some, others, strict=True)
    )


async def fails(awaitable: Awaitable[object], error: type[Exception]) -> Exception:
    try:
        await awaitable
    except error as e:
        inferlet.reset()
        return e
    raise AssertionError(f"no {error.__name__}")


async def holds(**wanted: int) -> None:
    await inferlet.synchronize()
    used = await inferlet.usage()
    assert all(getattr(used, name) == value for name, value in wanted.items()), used
