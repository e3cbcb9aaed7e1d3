"""Cases of the calls that control answers."""

import given
from computing import TEXT, fails, holds

import inferlet
from inferlet import errors
from inferlet._generated import packers
from inferlet._wire.channel import channel


async def create_queue() -> None:
    queue = inferlet.create_queue()
    queue.alloc_kvpage(1)
    await queue.synchronize()


async def set_queue_priority() -> None:
    """A priority that there isn't is refused by control, which takes the other."""
    inferlet.set_queue_priority(inferlet.Priority.HIGH)
    await inferlet.synchronize()
    channel.record(*packers.set_queue_priority(0, 9))
    await fails(inferlet.synchronize(), errors.InvalidArgument)


async def synchronize() -> None:
    inferlet.dealloc_kvpage(inferlet.KvPage(7))
    await fails(inferlet.synchronize(), errors.UnknownResource)


async def reset() -> None:
    inferlet.dealloc_kvpage(inferlet.KvPage(7))
    await fails(inferlet.synchronize(), errors.UnknownResource)
    inferlet.reset()
    await inferlet.synchronize()


async def cancel() -> None:
    queue = inferlet.create_queue()
    (page,) = queue.alloc_kvpage(1)
    for _ in range(50):
        since = queue.mark()
        for _ in range(20):
            queue.mask_kvpage(page, 1)
        if await queue.cancel(since):
            return
    raise AssertionError("nothing was dropped")


async def alloc_kvpage() -> None:
    inferlet.alloc_kvpage(3)
    await holds(pages=3)


async def dealloc_kvpage() -> None:
    pages = inferlet.alloc_kvpage(3)
    inferlet.dealloc_kvpage(pages[:2])
    await holds(pages=1)


async def alloc_emb() -> None:
    inferlet.alloc_emb(3)
    await holds(embeds=3)


async def dealloc_emb() -> None:
    inferlet.dealloc_emb(inferlet.alloc_emb(3)[1:])
    await holds(embeds=1)


async def alloc_slot() -> None:
    inferlet.alloc_slot(3)
    await holds(slots=3)


async def dealloc_slot() -> None:
    inferlet.dealloc_slot(inferlet.alloc_slot(3)[1:])
    await holds(slots=1)


async def usage() -> None:
    inferlet.alloc_kvpage(2)
    await inferlet.synchronize()
    assert (await inferlet.usage()).pages == 2


async def table() -> None:
    made = inferlet.table(new_rows=3)
    inferlet.table(made, keep_tokens=inferlet.get_kv_page_size(), new_rows=1)
    await holds(pages=2)


async def grammar() -> None:
    digits = await inferlet.alloc_grammar(inferlet.regex("[0-9]+"))
    (embed,), (slot,) = inferlet.alloc_emb(1), inferlet.alloc_slot(1)
    inferlet.embed_txt(72, 0, embed)
    inferlet.forward([], [embed], oemb=[embed])
    token = (await inferlet.sample(embed, slot, grammar=digits)).token
    assert (await inferlet.detokenize([token])).isdigit()


async def dealloc_grammar() -> None:
    for _ in range(65):  # one more than a program may hold
        inferlet.dealloc_grammar(await inferlet.alloc_grammar(inferlet.regex("[0-9]+")))


async def store_set() -> None:
    assert await inferlet.store_set(f"{given.tag}key", "one") is False
    assert await inferlet.store_set(f"{given.tag}key", b"two") is True
    assert await inferlet.store_get(f"{given.tag}key") == "two"


async def store_delete() -> None:
    await inferlet.store_set(f"{given.tag}key", "one")
    assert await inferlet.store_delete(f"{given.tag}key") is True
    assert await inferlet.store_get(f"{given.tag}key") is None


async def store_exists() -> None:
    await inferlet.store_set(f"{given.tag}key", "one")
    assert await inferlet.store_exists(f"{given.tag}key") is True
    assert await inferlet.store_exists(f"{given.tag}other") is False


async def store_list_keys() -> None:
    await inferlet.store_set(f"{given.tag}a/1", "")
    await inferlet.store_set(f"{given.tag}b/1", "")
    assert await inferlet.store_list_keys(f"{given.tag}a/") == [f"{given.tag}a/1"]


async def broadcast() -> None:
    async with inferlet.subscribe(f"{given.tag}news") as news:
        assert await inferlet.broadcast(f"{given.tag}news", "rain") == 1
        assert await news.receive() == "rain"


async def unsubscribe() -> None:
    news = inferlet.subscribe(f"{given.tag}news")
    await news.close()
    assert await inferlet.broadcast(f"{given.tag}news", "rain") == 0


async def export_kvpage() -> None:
    async with inferlet.Context() as ctx:
        ctx.fill_tokens(TEXT)
        await ctx.flush()
        exported = await ctx.save(f"{given.tag}text")
        assert (exported.tokens, exported.version) == (len(TEXT), 1)
    imported = await inferlet.import_kvpage(f"{given.tag}text")
    assert list(imported.tokens) == TEXT
    assert [each.name for each in await inferlet.get_all_exported_kvpages()].count(f"{given.tag}text") == 1


async def unexport_kvpage() -> None:
    await inferlet.export_kvpage(None, f"{given.tag}text", tail=TEXT)
    await inferlet.unexport_kvpage(f"{given.tag}text")
    await fails(inferlet.import_kvpage(f"{given.tag}text"), errors.UnknownName)


async def set_prefix_cache() -> None:
    """An equal prompt is taken over from the cache unless the queue says that it isn't to be."""
    inferlet.set_prefix_cache(False, program=True)
    for _ in range(2):
        before = (await inferlet.usage()).computed_tokens
        async with inferlet.Context() as ctx:
            ctx.fill_tokens(TEXT * 20)
            await ctx.flush()
        computed_tokens = (await inferlet.usage()).computed_tokens - before
    assert computed_tokens >= 90, computed_tokens


async def expect() -> None:
    inferlet.expect(12345)
    inferlet.send("expects")
    await inferlet.receive()
