"""Topics that outlive control: each subscriber gets each message once, in its publisher's order, whenever control dies.

The same scenario runs over values in memory and in a real Redis.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tartlet_common.config.settings import ControlSettings
from tartlet_common.errors.registry import InvalidArgument, Overloaded
from tartlet_control.tables.shared.topics import MAX_OF_TENANT, MAX_WAITING, Safe
from tartlet_control.values import keeper, room
from tartlet_control.values.kept_topics import KeptTopics
from tartlet_control.values.redis_values import topics_of
from tartlet_control.values.values import Change, Found, Told, Values, ValuesAway
from tests.redis_server import RedisServer, redis_server

STEPS = ("publish", "publish", "ask", "ask", "write", "write", "deliver", "store", "die", "both die", "join", "part")


class MemoryValues:
    """Values in this process, which outlive the topics that use them."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], bytes] = {}
        self.told: dict[str, dict[int, int]] = {}
        self.is_away = False

    async def read(self) -> AsyncIterator[Found]:
        if self.is_away:
            raise ValuesAway
        for (tenant, key), value in self.values.items():
            yield Found(tenant, key, value)
        for program_id, told in self.told.items():
            yield Found("", program_id, told=dict(told))

    async def write(self, changes: Sequence[Change], told: Told) -> None:
        if self.is_away:
            raise ValuesAway
        for change in changes:
            if change.value is None:
                self.values.pop((change.tenant, change.key), None)
            else:
                self.values[change.tenant, change.key] = change.value
        for run, answers in told.items():
            self.told[run] = dict(answers)
            if not answers:
                del self.told[run]

    async def close(self) -> None:
        """No-op: nothing is open."""


class World:
    """Two publishers and some subscribers with journals, and what is remembered of them when control dies."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.sent = {"p": 0, "q": 0}
        self.unanswered: dict[tuple[str, int], bytes] = {}
        self.got: dict[str, list[bytes]] = {}
        self.since: dict[str, Counter[str]] = {}
        """Of each subscriber, how many messages of each publisher were answered before it had subscribed."""
        self.lost = 0
        self.asks: set[str] = set()
        self.on_the_way: list[partial[None]] = []
        self.stored: Counter[str] = Counter()
        """How many messages are in each subscriber's journal."""

    async def begin(self) -> None:
        """Start a control, to which all programs come back."""
        self.topics = KeptTopics(self.values)
        self.on_the_way = []
        await self.topics.keeper.load()
        for (program_id, ticket), message in self.unanswered.items():
            self._publish(program_id, ticket, message)  # also before the subscribers are back
        for name, got in self.got.items():
            self.topics.resume("t", name, 1, "news", partial(self._hand, name), len(got), self._safe(name, len(got)))
            if name in self.asks:
                self.topics.next_message(name, 1, 9)

    def _safe(self, name: str, count: int) -> Safe:
        return lambda: self.stored[name] >= count

    def _hand(self, name: str, ticket: int, lost: int, message: bytes) -> Safe:
        assert ticket == 9
        self.lost += lost
        self.on_the_way.append(partial(self._take, name, message))
        return self._safe(name, len(self.got[name]) + 1)

    def _take(self, name: str, message: bytes) -> None:
        self.asks.discard(name)
        self.got[name].append(message)

    def _publish(self, program_id: str, ticket: int, message: bytes) -> None:
        def told(_: int) -> None:
            self.on_the_way.append(partial(self._answered, program_id, ticket))

        self.topics.publish("t", "news", message, (program_id, ticket), told)

    def _answered(self, program_id: str, ticket: int) -> None:
        self.unanswered.pop((program_id, ticket), None)

    async def step(self, step: str, pick: random.Random) -> None:
        match step:
            case "publish":
                program_id = pick.choice("pq")
                self.sent[program_id] += 1
                ticket, message = self.sent[program_id], f"{program_id}{self.sent[program_id]}".encode()
                self.unanswered[program_id, ticket] = message
                self._publish(program_id, ticket, message)
            case "ask" if self.got:
                name = pick.choice(sorted(self.got))
                if name not in self.asks:
                    self.asks.add(name)
                    self.topics.next_message(name, 1, 9)
            case "write":
                await self.topics.keeper.write()
            case "deliver" if self.on_the_way:
                self.on_the_way.pop(0)()
            case "store" if self.got:
                name = pick.choice(sorted(self.got))
                self.stored[name] = len(self.got[name])
            case "die":
                await self.begin()
            case "both die" if self.got:  # and a journal lacks what its program was told last
                name = pick.choice(sorted(self.got))
                del self.got[name][self.stored[name] :]
                self.asks.discard(name)
                await self.begin()
            case "join" if len(self.since) < 4:
                name = f"s{len(self.since)}"
                self.got[name], self.since[name] = [], Counter(self.sent)
                self.topics.subscribe("t", name, 1, "news", partial(self._hand, name))
                await self.topics.keeper.write()
            case "part" if len(self.got) > 1:
                name = pick.choice(sorted(self.got))
                del self.got[name]
                self.asks.discard(name)
                self.on_the_way = [each for each in self.on_the_way if each.args[0] != name]
                self.topics.leave(name)
                await self.topics.keeper.write()
            case _:
                pass

    async def end(self) -> None:
        """Deliver all there is, and check what the subscribers got."""
        for _ in range(2 * sum(self.sent.values()) + 2):
            await self.topics.keeper.write()
            while self.on_the_way:
                self.on_the_way.pop(0)()
            for name in self.got.keys() - self.asks:
                self.asks.add(name)
                self.topics.next_message(name, 1, 9)
        assert not self.unanswered
        assert self.lost == 0
        for name, got in self.got.items():
            for program_id, count in self.sent.items():
                mine = [int(message[1:]) for message in got if message[:1] == program_id.encode()]
                assert mine == sorted(set(mine)), "once, and in order"
                assert mine[-1:] == [count][: len(mine)] or count == self.since[name][program_id]
                assert set(mine) >= set(range(self.since[name][program_id] + 1, count + 1))
        for name in list(self.got):
            self.topics.leave(name)
        await self.topics.keeper.write()
        assert [each async for each in self.values.read() if each.told is None] == [], "nothing is left"


async def scenario(values: Values, steps: Sequence[str], seed: int) -> None:
    world, pick = World(values), random.Random(seed)
    await world.begin()
    await world.step("join", pick)
    for step in steps:
        await world.step(step, pick)
    await world.end()


@settings(max_examples=100, deadline=None)
@given(steps=st.lists(st.sampled_from(STEPS), min_size=30, max_size=80), seed=st.integers(0, 1 << 16))
def test_each_subscriber_gets_each_message_once_and_in_order(steps: list[str], seed: int) -> None:
    asyncio.run(scenario(MemoryValues(), steps, seed))


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.mark.parametrize("seed", range(4))
async def test_so_it_is_in_a_redis(redis: RedisServer, seed: int) -> None:
    values = topics_of(ControlSettings(store_url=redis.url, directory_release=f"r{seed}"), 1).keeper.values
    await scenario(values, random.Random(seed).choices(STEPS, k=120), seed)
    await values.close()


async def test_nothing_is_told_while_the_redis_is_away_and_calls_are_bounded() -> None:
    values, told = MemoryValues(), list[object]()
    values.is_away = True
    topics = KeptTopics(values)
    await topics.keeper.load()
    running = asyncio.ensure_future(topics.keeper.run(lambda: None))

    def hand(*answer: object) -> None:
        told.append(answer)

    def work() -> None:
        topics.subscribe("t", "s", 1, "news", hand)
        topics.next_message("s", 1, 5)
        topics.publish("t", "news", b"hi", ("p", 1), told.append)

    topics.when_ready(work)
    await asyncio.sleep(0.3)
    assert told == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "MAX_WAITING", 1)
        with pytest.raises(Overloaded):
            topics.when_ready(work, "t")
    values.is_away = False
    async with asyncio.timeout(10):
        while len(told) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert told == [(5, 0, b"hi"), 1]
    with pytest.raises(InvalidArgument):
        topics.publish("t", "", b"hi", ("p", 2), told.append)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await topics.keeper.close()


async def test_the_oldest_messages_give_way_and_a_program_that_never_comes_back_loses_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = MemoryValues()
    before = KeptTopics(values)
    await before.keeper.load()
    before.subscribe("t", "s", 1, "news", lambda *_: None)
    before.subscribe("t", "gone", 1, "news", lambda *_: None)
    for n in range(MAX_WAITING + 3):
        before.publish("t", "news", b"%d" % n, ("p", n + 1), lambda _: None)
    await before.keeper.write()
    await before.keeper.write()
    monkeypatch.setattr(keeper, "CLAIM_S", 0.0)
    after, told = KeptTopics(values), list[object]()
    await after.keeper.load()
    after.resume("t", "s", 1, "news", lambda *answer: told.append(answer), 0, None)
    after.next_message("s", 1, 7)
    assert told == [(7, 3, b"3")]
    await asyncio.sleep(0.05)
    await after.keeper.write()
    assert not [key for _, key in values.values if key.startswith("p/gone/")]
    assert sum(key.startswith("m/") for _, key in values.values) == MAX_WAITING
    await after.keeper.close()


async def test_messages_to_many_subscriptions_neither_fill_a_write_nor_the_memory() -> None:
    written = list[int]()

    class Counting(MemoryValues):
        async def write(self, changes: Sequence[Change], told: Told) -> None:
            written.append(len(changes))
            await super().write(changes, told)

    topics, told = KeptTopics(Counting()), list[int]()
    await topics.keeper.load()
    for n in range(MAX_OF_TENANT):
        topics.subscribe("t", f"p{n // 64}", n % 64, "news", lambda *_: None)
    with contextlib.suppress(Overloaded):
        for n in range(room.MAX_WAITING):
            topics.publish("t", "news", b"hi", ("p", n + 1), told.append)
    assert sum(len(each.changes) for each in topics.keeper.waiting) * 200 < room.MAX_WAITING_BYTES
    await topics.keeper.write()
    assert told == [MAX_OF_TENANT] * len(told) != []
    assert max(written) < 4096 + MAX_OF_TENANT + 2, "Redis must answer in time, and others wait meanwhile"
    await topics.keeper.close()


async def test_what_makes_no_sense_is_deleted() -> None:
    values = MemoryValues()
    wrong = {"s/x/y": b"news", "s/a/1": b"\xff", "m/zz": b"", "m/5": b"nobody's", "p/a/1/0": b"5", "p/": b"", "": b""}
    values.values = {("t", key): value for key, value in wrong.items()} | {("t", "s/b/1"): b"news"}
    topics = KeptTopics(values)
    await topics.keeper.load()
    await topics.keeper.write()
    assert values.values == {("t", "s/b/1"): b"news"}
    await topics.keeper.close()
