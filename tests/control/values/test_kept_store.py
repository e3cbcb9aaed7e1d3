"""The store that outlives control: no answer before its write is stored, and each write has one effect. Real Redis."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from redis.asyncio import Redis

from tartlet_common.abi import Op
from tartlet_common.config.settings import ControlSettings
from tartlet_common.errors.base import TartletError
from tartlet_common.errors.registry import InvalidConfig, Overloaded, ResourceQuotaExceeded
from tartlet_control.tables.shared.expiring import dated
from tartlet_control.tables.shared.store import HIDDEN, MAX_KEYS, Request
from tartlet_control.values import room
from tartlet_control.values.kept_store import KeptStore
from tartlet_control.values.redis_values import store_of
from tests.redis_server import RedisServer, redis_server, slow_proxy

Told = tuple[int, bytes, TartletError | None]


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@contextlib.asynccontextmanager
async def control(url: str, release: str, epoch: int = 1) -> AsyncIterator[KeptStore]:
    """One control's store. It dies at the end: nothing more is written."""
    store = store_of(ControlSettings(store_url=url, directory_release=release), epoch)
    await store.keeper.load()
    running = asyncio.ensure_future(store.keeper.run(lambda: None))
    try:
        yield store
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await store.keeper.values.close()


def asked(store: KeptStore, op: Op, key: str, value: bytes = b"", tenant: str = "t", **who: Any) -> list[Told]:
    told: list[Told] = []
    store.ask(tenant, Request(int(op), key, value, **who), lambda *answer: told.append(answer))
    return told


async def ask(store: KeptStore, *args: Any, **who: Any) -> Told:
    told = asked(store, *args, **who)
    await until(lambda: bool(told))
    return told[0]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.005)


async def test_values_outlive_control_and_each_tenant_has_its_own(redis: RedisServer) -> None:
    async with control(redis.url, "outlive") as store:
        assert await ask(store, Op.STORE_SET, "a", b"1") == (0, b"", None)
        assert await ask(store, Op.STORE_SET, "a", b"\x002\xff") == (1, b"", None)
        assert await ask(store, Op.STORE_SET, "ü*", b"") == (0, b"", None)
        assert await ask(store, Op.STORE_SET, "a", b"theirs", tenant="u/*") == (0, b"", None)
        assert await ask(store, Op.STORE_SET, "gone", b"x") == (0, b"", None)
        assert await ask(store, Op.STORE_DELETE, "gone") == (1, b"", None)
    async with control(redis.url, "outlive", 2) as store:
        assert await ask(store, Op.STORE_GET, "a") == (1, b"\x002\xff", None)
        assert (await ask(store, Op.STORE_LIST_KEYS, ""))[1] == '["a","ü*"]'.encode()
        assert await ask(store, Op.STORE_GET, "a", tenant="u/*") == (1, b"theirs", None)
    async with control(redis.url, "another") as store:
        assert await ask(store, Op.STORE_GET, "a") == (0, b"", None)


HOSTILE = [b"\xff", b"{}", b"[[1]]", b'[["a", 1]]', b"[[1, Infinity]]", b"[[1, 1e999]]", b"[[1, 99]]", b"[[-1, 1]]",
           b"[[99999999999, 1]]", b"[" * 100_000]  # fmt: skip


async def test_answers_that_make_no_sense_are_left_out(redis: RedisServer) -> None:
    async with control(redis.url, "hostile") as store:
        await ask(store, Op.STORE_SET, "a", b"1", program_id="p", ticket=1)
    client = Redis.from_url(redis.url)
    for number, told in enumerate(HOSTILE):
        await client.hset("tartlet:store:{hostile}:told", f"h{number}", told)
    await client.aclose()
    async with control(redis.url, "hostile", 2) as store:
        assert await ask(store, Op.STORE_SET, "a", b"2", program_id="p", ticket=1) == (0, b"", None)
        assert await ask(store, Op.STORE_GET, "a") == (1, b"1", None)
        for number in range(len(HOSTILE)):
            answered = await ask(store, Op.STORE_SET, "a", b"3", program_id=f"h{number}", ticket=1)
            assert answered == (1, b"", None)


async def test_no_answer_comes_before_the_writes_of_its_tenant_are_stored(redis: RedisServer) -> None:
    async with slow_proxy(redis.port) as proxy, control(proxy.url, "slow") as store:
        proxy.delay_s = 0.3
        written = asked(store, Op.STORE_SET, "a", b"1")
        read = asked(store, Op.STORE_GET, "a")
        elsewhere = asked(store, Op.STORE_GET, "a", tenant="other")
        assert elsewhere == [(0, b"", None)], "another tenant's requests don't wait"
        await asyncio.sleep(0.05)
        assert not written
        assert not read
        await until(lambda: bool(written and read))
        assert read == [(1, b"1", None)]


async def test_a_write_that_is_asked_for_again_after_controls_death_has_one_effect(redis: RedisServer) -> None:
    async with control(redis.url, "again") as store:
        await ask(store, Op.STORE_SET, "a", b"1", program_id="p", ticket=7)
        assert await ask(store, Op.STORE_DELETE, "a", program_id="p", ticket=8) == (1, b"", None)
        await ask(store, Op.STORE_SET, "b", b"1", program_id="p")  # nobody awaits these two
        await ask(store, Op.STORE_SET, "b", b"2", program_id="p")
    async with control(redis.url, "again", 2) as store:
        assert await ask(store, Op.STORE_DELETE, "a", program_id="p", ticket=8) == (1, b"", None), "as before"
        assert await ask(store, Op.STORE_DELETE, "a", program_id="p", ticket=9) == (0, b"", None)
        assert await ask(store, Op.STORE_GET, "b") == (1, b"2", None)
        store.leave("p")
        await ask(store, Op.STORE_SET, "c", b"")
    async with control(redis.url, "again", 3) as store:
        assert await ask(store, Op.STORE_SET, "a", b"1", program_id="p", ticket=8) == (0, b"", None), "another run's"


async def test_a_redis_that_is_away_holds_requests_and_loses_none(redis: RedisServer) -> None:
    redis.kill()
    try:
        async with control(redis.url, "away") as store:
            told = [asked(store, Op.STORE_SET, f"k{i}", b"v") for i in range(100)]
            await asyncio.sleep(0.2)
            assert not any(told)
            redis.start()
            await until(lambda: all(told))
            redis.kill()
            late = asked(store, Op.STORE_SET, "late", b"v")
            redis.start()
            await until(lambda: bool(late))
    finally:
        if redis.process is None or redis.process.poll() is not None:
            redis.start()
    async with control(redis.url, "away", 2) as store:
        assert (await ask(store, Op.STORE_LIST_KEYS, "k"))[1].count(b",") == 99
        assert await ask(store, Op.STORE_EXISTS, "late") == (1, b"", None)


async def test_a_control_that_was_replaced_writes_nothing(redis: RedisServer) -> None:
    async with control(redis.url, "replaced", 5) as old, control(redis.url, "replaced", 6) as new:
        stale = asked(old, Op.STORE_SET, "a", b"old")
        assert await ask(new, Op.STORE_SET, "a", b"new") == (0, b"", None)
        await asyncio.sleep(0.3)
        assert not stale
    async with control(redis.url, "replaced", 7) as store:
        assert await ask(store, Op.STORE_GET, "a") == (1, b"new", None)


async def test_bounds_are_those_of_the_store_in_memory_and_of_what_waits(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with control(redis.url, "bounds") as store:
        told = [asked(store, Op.STORE_SET, str(i), b"") for i in range(MAX_KEYS)]
        await until(lambda: all(told))
        assert isinstance((await ask(store, Op.STORE_SET, "one more", b""))[2], ResourceQuotaExceeded)
        monkeypatch.setattr(room, "MAX_WAITING", 2)
        told = [asked(store, Op.STORE_SET, "1", b"") for _ in range(3)]
        assert isinstance(told[2][0][2], Overloaded)
        await until(lambda: all(told))


def test_a_url_with_a_password_or_of_another_kind_is_refused() -> None:
    for url in ("redis://:secret@localhost", "http://localhost"):
        with pytest.raises(InvalidConfig):
            store_of(ControlSettings(store_url=url), 1)


async def test_values_that_expire_outlive_control_and_those_that_gave_way_do_not(redis: RedisServer) -> None:
    async with control(redis.url, "expiring") as store:
        for key, end_s in (("soon", 10.0), ("late", 90.0)):
            value = dated(bytes(7 << 20), end_s)
            assert await ask(store, Op.STORE_SET, HIDDEN + key, value, now_s=1.0) == (0, b"", None)
        assert await ask(store, Op.STORE_SET, "mine", bytes(3 << 20)) == (0, b"", None)
        assert await ask(store, Op.STORE_SET, HIDDEN + "no", dated(b"", 9.0), now_s=1.0, existing=True) == (
            0,
            b"",
            None,
        )
    async with control(redis.url, "expiring", 2) as store:
        found = [(await ask(store, Op.STORE_EXISTS, HIDDEN + key))[0] for key in ("soon", "late", "no")]
        assert found == [0, 1, 0]
        await ask(store, Op.STORE_GET, HIDDEN + "x", now_s=100.0)
    async with control(redis.url, "expiring", 3) as store:
        assert (await ask(store, Op.STORE_EXISTS, HIDDEN + "late"))[0] == 0


async def test_foreign_values_at_its_keys_stop_neither_reads_nor_writes(redis: RedisServer) -> None:
    async with Redis.from_url(redis.url) as client:
        async with control(redis.url, "foreign") as store:
            assert await ask(store, Op.STORE_SET, "k", b"v", tenant="u") == (0, b"", None)
        prefix = "tartlet:store:{foreign}:"
        await client.delete(f"{prefix}told")
        for key in ("of/t", "told"):
            await client.set(f"{prefix}{key}", "a string")
        await client.delete(f"{prefix}epoch")
        await client.hset(f"{prefix}epoch", "a", "hash")
        async with control(redis.url, "foreign", 2) as store:
            assert await ask(store, Op.STORE_GET, "k", tenant="u") == (1, b"v", None)
            assert await ask(store, Op.STORE_SET, "k", b"w", program_id="p", ticket=1) == (0, b"", None)
        async with control(redis.url, "foreign", 3) as store:
            assert await ask(store, Op.STORE_GET, "k") == (1, b"w", None)
        assert await client.get(f"{prefix}of/t:foreign") == b"a string"
