"""The store and messages on topics, as programs use them, against `MiniHost` with control's store and topics."""

from __future__ import annotations

import asyncio

import pytest

from inferlet import (
    broadcast,
    errors,
    store_delete,
    store_exists,
    store_get,
    store_get_bytes,
    store_list_keys,
    store_set,
    subscribe,
)
from tests.sdk.host.harness import run
from tests.sdk.host.mini_host import MiniHost


def test_the_store_keeps_what_it_is_given() -> None:
    async def main() -> None:
        assert (await store_get("k"), await store_exists("k"), await store_delete("k")) == (None, False, False)
        assert await store_set("k", "") is False
        assert (await store_get("k"), await store_exists("k")) == ("", True)
        assert await store_set("k", bytes(range(256))) is True
        assert await store_get_bytes("k") == bytes(range(256))
        await store_set('café/"\\', "x")
        assert await store_list_keys() == ['café/"\\', "k"]
        assert await store_list_keys("caf") == ['café/"\\']
        assert await store_delete("k") is True
        assert await store_list_keys("k") == []

    run(MiniHost(), main)


@pytest.mark.parametrize("key", ["", "a\nb", "x" * 257, "\ud800", b"bytes", None, 7])
def test_a_key_that_is_none_is_refused(key: str) -> None:
    async def main() -> None:
        for call in (store_get, store_get_bytes, store_exists, store_delete, lambda k: store_set(k, "v")):
            with pytest.raises(errors.InvalidArgument):
                await call(key)
        with pytest.raises(errors.InvalidArgument):
            await store_set("k", [1])  # type: ignore[arg-type]
        await store_set("k", "still there")
        assert await store_get("k") == "still there"

    run(MiniHost(), main)


def test_a_full_store_refuses_and_says_how_full_it_is() -> None:
    async def main() -> None:
        for i in range(4096):
            await store_set(str(i), "")
        with pytest.raises(errors.ResourceQuotaExceeded) as full:
            await store_set("one more", "")
        assert (full.value.fields["held"], full.value.fields["limit"]) == (4096, 4096)
        await store_set("0", "but a key that is there can change")
        await store_delete("4095")
        await store_set("one more", "")
        with pytest.raises(errors.InvalidArgument):
            await store_set("0", bytes((256 << 10) + 1))
        for i in range(63):
            await store_set(str(i), bytes(256 << 10))
        with pytest.raises(errors.ResourceQuotaExceeded) as full:
            await store_set("64", bytes(256 << 10))
        assert full.value.fields["limit"] == 16 << 20

    run(MiniHost(), main)


def test_a_cancelled_wait_loses_no_message_and_waits_take_turns() -> None:
    async def main() -> None:
        async with subscribe("news") as news:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await news.receive()
            both = [asyncio.ensure_future(news.receive()) for _ in range(2)]
            await asyncio.sleep(0)
            assert await broadcast("news", "one") == 1
            both[1].cancel()
            assert await both[0] == "one"
            await broadcast("news", "two")
            assert await news.receive() == "two"
        assert await broadcast("news", "nobody") == 0

    run(MiniHost(), main)


def test_a_slow_subscriber_loses_the_oldest_messages_and_learns_how_many() -> None:
    async def main() -> None:
        news = subscribe("news")
        for i in range(300):
            await broadcast("news", str(i))
        assert (await news.receive(), news.lost) == ("44", 44)
        assert (await news.receive(), news.lost) == ("45", 44)

    run(MiniHost(), main)


def test_a_closed_subscription_ends_its_waits() -> None:
    async def main() -> None:
        news = subscribe("news")
        waiting = asyncio.ensure_future(news.receive())
        await asyncio.sleep(0.01)
        await news.close()
        with pytest.raises(errors.CommandCancelled):
            await waiting
        with pytest.raises(errors.UnknownResource):
            await news.receive()

    run(MiniHost(), main)


def test_subscriptions_and_messages_are_bounded() -> None:
    async def main() -> None:
        many = [subscribe(str(i)) for i in range(65)]
        with pytest.raises(errors.ResourceQuotaExceeded):
            await many[64].receive()
        with pytest.raises(errors.InvalidArgument):
            await broadcast("0", bytes((64 << 10) + 1))
        with pytest.raises(errors.InvalidArgument):
            await broadcast("", "x")
        await broadcast("0", bytes(64 << 10))
        assert len(await many[0].receive_bytes()) == 64 << 10

    run(MiniHost(), main)
