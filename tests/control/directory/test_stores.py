"""A store keeps generations, whatever holds them: memory and Redis pass the same tests."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import redis

from tartlet_control.directory.memory_store import MemoryStore, Shelf
from tartlet_control.directory.redis_store import RedisStore
from tartlet_control.directory.store import Entry, Store, StoreAway, StoreLost, StoreTaken
from tartlet_control.lease.redis_client import make_client
from tests.redis_server import RedisServer, redis_server

Make = Callable[[int], Store]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as started:
        yield started


@contextlib.asynccontextmanager
async def stores(server: RedisServer | None, release: str = "here") -> AsyncIterator[Make]:
    """Yield what makes the store of a control with an epoch, in a Redis or in memory."""
    shelf = Shelf()
    if server is None:
        yield lambda epoch: MemoryStore(shelf, epoch)
        return
    redis.Redis.from_url(server.url).flushall()
    async with contextlib.AsyncExitStack() as stack:

        def make(epoch: int) -> Store:
            store = RedisStore(make_client(server.url, None, None, 1.0, bare=True), release, epoch)
            stack.push_async_callback(store.close)
            return store

        yield make


async def content(store: Store) -> dict[str, dict[bytes, bytes]]:
    found: dict[str, dict[bytes, bytes]] = {}
    async for section, entries in store.read():
        found.setdefault(section, {}).update(entries)
    return found


@pytest.mark.parametrize("kind", ["memory", "redis"])
async def test_a_store_keeps_generations(kind: str, server: RedisServer) -> None:
    for check in (reads_what_was_written, keeps_what_was_live, takes_no_writes_of_an_earlier_control):
        async with stores(server if kind == "redis" else None) as make:
            await check(make)


async def reads_what_was_written(make: Make) -> None:
    first = make(1)
    assert await content(first) == {}
    await first.begin()
    rows = [(bytes([i >> 8, i & 255]) * 8, b"") for i in range(2000)]
    await first.write("prefixes/an engine", rows)
    await first.write("names", [(b"a", b"1"), (b"b", b"\x00\xff")])
    assert await content(first) == {}
    await first.commit()
    await first.write("names", [(b"a", None), (b"c", b"3"), (b"never", None)])
    await first.check()
    expected = {"prefixes/an engine": dict(rows), "names": {b"b": b"\x00\xff", b"c": b"3"}}
    assert await content(first) == await content(make(2)) == expected
    await first.drop("prefixes/an engine")
    await first.check()
    assert await content(first) == {"names": expected["names"]}


async def keeps_what_was_live(make: Make) -> None:
    first, dies, last = make(1), make(2), make(3)
    await first.begin()
    await first.write("names", [(b"a", b"1")])
    await first.commit()
    await dies.begin()
    await dies.write("names", [(b"a", b"2"), (b"b", b"2")])
    assert await content(last) == {"names": {b"a": b"1"}}
    await last.begin()
    await last.write("names", [(b"c", b"3")])
    await last.commit()
    assert await content(last) == {"names": {b"c": b"3"}}


async def takes_no_writes_of_an_earlier_control(make: Make) -> None:
    first, dies, last = make(1), make(2), make(3)
    for each in (first, dies, last):
        await each.begin()
    await last.write("names", [(b"c", b"3")])
    await last.commit()
    for earlier in (first, dies):
        with pytest.raises(StoreLost):
            await earlier.write("names", [(b"d", b"4")])
        with pytest.raises(StoreTaken):
            await earlier.begin()
    assert await content(last) == {"names": {b"c": b"3"}}


async def test_redis_that_was_emptied_in_part_or_whole_is_noticed(server: RedisServer) -> None:
    client = redis.Redis.from_url(server.url)
    store = RedisStore(make_client(server.url, None, None, 1.0, bare=True), "emptied", 1)
    patterns = ["*emptied*/names", "*emptied*:live", "*emptied*:generations", "*emptied*"]
    for pattern in patterns:
        await store.begin()
        await store.write("names", [(b"a", b"1")])
        await store.write("placements", [(b"a", b"1")])
        await store.commit()
        await store.check()
        client.delete(*client.keys(pattern))
        with pytest.raises(StoreLost):
            await store.check()
    with pytest.raises(StoreLost):
        await store.write("names", [(b"b", b"1")])
    await store.close()


async def test_keys_that_others_use_are_no_directory_and_no_generation_stays_behind(server: RedisServer) -> None:
    client = redis.Redis.from_url(server.url)
    client.flushall()
    root = "tartlet:directory:1:{taken}:"
    client.rpush(f"{root}live", "x")
    client.rpush(f"{root}generations", "x")
    store = RedisStore(make_client(server.url, None, None, 1.0, bare=True), "taken", 1)
    assert await content(store) == {}
    for _ in range(3):
        await store.begin()
        await store.write("names", [(b"a", b"1")])
        await store.commit()
    assert await content(store) == {"names": {b"a": b"1"}}
    keys = client.keys(f"{root}*")
    assert len(keys) == 4, keys
    assert all(0 < client.ttl(key) <= 7 * 86_400 for key in keys)
    await store.close()


async def test_a_redis_without_room_or_without_an_answer_is_away(tmp_path: Path) -> None:
    with redis_server(tmp_path / "small", "--maxmemory", "2mb") as small:
        store = RedisStore(make_client(small.url, None, None, 0.2, bare=True), "small", 1, answer_s=0.5)
        await store.begin()
        with pytest.raises(StoreAway):
            await store.write("contexts", [(b"%d" % i, bytes(1 << 17)) for i in range(64)])
        small.kill()
        for call in (store.begin, store.commit, store.check):
            with pytest.raises(StoreAway):
                await call()
        with pytest.raises(StoreAway):
            await content(store)
        await store.close()


async def test_a_write_that_is_cancelled_at_any_moment_ends(server: RedisServer) -> None:
    pick = random.Random(52)
    rows: list[Entry] = [(pick.randbytes(16), b"") for _ in range(1024)]
    for _ in range(60):
        store = RedisStore(make_client(server.url, None, None, 1.0, bare=True), "cancelled", 1)
        await store.begin()
        writes = asyncio.create_task(forever(store, rows))
        await asyncio.sleep(pick.uniform(0, 0.01))
        writes.cancel()
        done, _ = await asyncio.wait((writes,), timeout=20)
        assert done
        assert writes.cancelled()
        await store.close()


async def forever(store: Store, rows: list[Entry]) -> None:
    while True:
        await store.write("prefixes/e", rows)
