"""How journals in Redis go: beside turns that never pause, and never from under their next owner."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tartlet_runtime.journal.records import Kind, crc_of, encode_record
from tartlet_runtime.journal.redis_client import make_client
from tests.redis_server import RedisServer, redis_server, slow_proxy
from tests.runtime.journal.test_stores import Streams, header


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


async def times_left(redis: RedisServer, *ids: str) -> list[int]:
    """Returns the milliseconds that each journal has; -1: for ever; -2: it is gone."""
    client = make_client(redis.url, None, None)
    try:
        return [await client.pttl(f"tartlet:journal:{each}") for each in ids]
    finally:
        await client.aclose()


async def test_ended_journals_go_while_turns_come_without_a_pause(redis: RedisServer) -> None:
    async with slow_proxy(redis.port) as proxy, Streams(redis).runtime(url=proxy.url) as one:
        ended = [f"ended{i}" for i in range(100)]
        await one.begin("busy", "deleted", *ended)
        proxy.delay_s = 0.01

        async def work() -> None:
            while True:
                one.add(busy=b"x")
                await asyncio.sleep(0.001)

        working = asyncio.ensure_future(work())
        try:
            await asyncio.sleep(0.05)
            for each in ended:
                one.store.close(each, keep=False)
            one.store.forget("deleted")
            async with asyncio.timeout(10):
                while await times_left(redis, "deleted") != [-2] or min(await times_left(redis, *ended)) < 0:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        finally:
            working.cancel()
        assert await times_left(redis, "busy") == [-1]
        await one.settle()
        assert not one.refusals


@pytest.mark.parametrize("how", ["close", "leave"])
async def test_the_journal_of_a_later_owner_lasts_when_the_earlier_one_lets_go_late(
    redis: RedisServer, how: str
) -> None:
    late, gone = f"late-{how}", f"gone-{how}"
    async with (
        slow_proxy(redis.port) as proxy,
        Streams(redis).runtime(url=proxy.url) as one,
        Streams(redis).runtime() as two,
    ):
        await one.begin(late, gone)
        proxy.delay_s = 0.3
        for each in (late, gone):
            if how == "close":
                one.store.close(each, keep=True)
            else:
                one.store.leave(each, 1)
        assert (await two.store.take_over(late, 2)).data == header(late)
        async with asyncio.timeout(10):
            while (await times_left(redis, gone))[0] < 0:  # noqa: ASYNC110 - Redis tells nobody
                await asyncio.sleep(0.02)
        assert await times_left(redis, late) == [-1]


async def test_journals_are_listed_until_an_end_was_told_or_programs_go_on_without_them(redis: RedisServer) -> None:
    async with Streams(redis).runtime() as one, Streams(redis).runtime() as two:
        ids = [f"live{i}" for i in range(40)]
        await one.begin("done", "untold", "left", "unprotected", *ids)
        ends = {
            name: encode_record(crc_of(header(name)), 1, b"digest00", b"{}", 0, 0, Kind.END)
            for name in ("done", "untold", "left")
        }
        one.add(**ends, live3=b"")
        await one.settle()
        one.store.close("done", keep=False)
        one.store.leave("left", 1)
        one.store.drop("unprotected")
        async with asyncio.timeout(10):
            while await times_left(redis, "unprotected") != [-2] or -1 in await times_left(redis, "done", "left"):  # noqa: ASYNC110 - Redis tells nobody
                await asyncio.sleep(0.02)
        await two.store.take_over("live7", 2)
        assert {j.header.program_id for j in await one.store.live()}.isdisjoint([*ids, "untold"]), "they run here"
        listed = {j.header.program_id: j.epoch for j in await two.store.live()}
        mine = [*ids, "done", "untold", "left", "unprotected"]
        assert {name: epoch for name, epoch in listed.items() if name in mine} == {
            name: 1 for name in [*ids, "untold", "left"] if name != "live7"
        }
        await two.store.take_over("left", 2)
        two.store.close("left", keep=False)  # it was told
        async with asyncio.timeout(10):
            while await times_left(redis, "left") == [-1]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert "left" not in {j.header.program_id for j in await one.store.live()}
