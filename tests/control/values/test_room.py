"""What waits for a Redis: each tenant has its share, and a Redis that is slow gets less at once."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable, Sequence

import pytest

from tartlet_common.abi import Op
from tartlet_common.errors.base import TartletError
from tartlet_common.errors.registry import Overloaded
from tartlet_control.tables.shared.store import MAX_VALUE_BYTES, Request
from tartlet_control.values import keeper, room
from tartlet_control.values.kept_store import KeptStore
from tartlet_control.values.kept_topics import KeptTopics
from tartlet_control.values.values import Change, Told, ValuesAway
from tests.control.values.test_kept_topics import MemoryValues


def flood(call: Callable[[int], None]) -> int:
    """Call until a call is refused; return how many weren't."""
    for n in range(2 * room.MAX_WAITING):
        try:
            call(n + 1)
        except Overloaded:
            return n
    raise AssertionError("nothing is refused")


async def test_a_tenant_that_broadcasts_without_end_leaves_room_for_the_others() -> None:
    topics, told = KeptTopics(MemoryValues()), list[int]()
    await topics.keeper.load()
    calls = [flood(lambda n, who=name: topics.publish(who, "x", b"", (f"{who}/1", n), told.append)) for name in "abc"]  # type: ignore[misc]
    assert calls[0] == room.MAX_WAITING // 2
    assert calls == sorted(calls, reverse=True)
    assert calls[2] > room.MAX_WAITING // 10
    topics.publish("d", "x", b"", ("d/1", 1), told.append)
    await topics.keeper.write()
    assert len(told) == sum(calls) + 1
    assert (topics.keeper.room.calls, topics.keeper.room.bytes) == (0, 0)
    await topics.keeper.close()


async def test_a_tenant_that_writes_large_values_leaves_the_store_to_the_others() -> None:
    store, told = KeptStore(MemoryValues()), list[TartletError | None]()
    await store.keeper.load()

    def ask(tenant: str, op: Op, value: bytes = b"") -> TartletError | None:
        outcomes: list[TartletError | None] = []
        store.ask(tenant, Request(int(op), "k", value, f"{tenant}/1"), lambda _, __, error: outcomes.append(error))
        told.extend(outcomes)
        return outcomes[0] if outcomes else None

    errors = [ask("evil", Op.STORE_SET, bytes(MAX_VALUE_BYTES)) for _ in range(140)]
    assert isinstance(errors[-1], Overloaded)
    assert ask("victim", Op.STORE_GET) is None
    assert ask("victim", Op.STORE_SET, b"v") is None
    assert store.keeper.room.bytes <= room.MAX_WAITING_BYTES // 2 + 2 * MAX_VALUE_BYTES
    await store.keeper.close()
    assert store.keeper.room.bytes == 0


@pytest.mark.parametrize("subscriptions", [0, 8])
async def test_what_a_broadcast_takes_is_counted(subscriptions: int) -> None:
    topics = KeptTopics(MemoryValues())
    await topics.keeper.load()
    for n in range(subscriptions):
        topics.subscribe("t", f"s{n}", 1, "news", lambda *_: None)
    for n in range(512):  # answers that are kept
        topics.publish("t", "other", b"", ("p/1", n + 1), lambda _: None)
    await topics.keeper.write()
    tracemalloc.start()
    for n in range(500):
        topics.publish("t", "news", bytes(100), ("p/1", 1000 + n), lambda _: None)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 1.25 * topics.keeper.room.bytes
    await topics.keeper.close()


class SlowValues(MemoryValues):
    """Values that take so long for many bytes that the write times out."""

    most = 100_000

    async def write(self, changes: Sequence[Change], told: Told) -> None:
        if sum(len(change.value or b"") for change in changes) > self.most:
            raise ValuesAway("it takes too long")
        await super().write(changes, told)


async def test_a_redis_that_is_too_slow_for_a_large_write_gets_smaller_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "RETRY_S", (0.001, 0.01))
    store, told = KeptStore(SlowValues()), list[TartletError | None]()
    await store.keeper.load()
    for n in range(200):
        request = Request(int(Op.STORE_SET), str(n), bytes(20_000), "p/1", n + 1)
        store.ask("t", request, lambda _, __, error: told.append(error))
    running = asyncio.ensure_future(store.keeper.run(lambda: None))
    async with asyncio.timeout(10):
        while len(told) < 200:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert told == [None] * 200
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await store.keeper.close()
