"""What is kept of programs' last calls for a control that dies: by run, and no longer than anybody may ask for it."""

from __future__ import annotations

import asyncio

import pytest

from tartlet_common.abi import Op
from tartlet_common.errors.registry import UnknownResource
from tartlet_control.tables.shared.store import Request
from tartlet_control.values import keeper
from tartlet_control.values.kept_store import KeptStore
from tartlet_control.values.kept_topics import KeptTopics
from tests.control.harness import Host
from tests.control.values.test_kept_topics import MemoryValues


async def write(values: MemoryValues, run: bytes, value: bytes) -> None:
    """Let the first command of a program's run set a key, with a control of its own, which dies then."""
    host, store = Host(), KeptStore(values)
    await store.keeper.load()
    host.core.lifecycle.store = store
    guest = host.start("p", durable=True, epoch=1, run=run)
    ticket = guest.put(Op.STORE_SET, a=1, payload=b"k" + value, wait=True)
    host.flush()
    await store.keeper.write()
    host.collect()
    assert guest.answered(ticket)
    store.keeper._claims.cancel()  # type: ignore[union-attr]  # it was loaded


async def test_a_write_that_comes_again_has_one_effect_and_one_of_the_next_run_has_its_own() -> None:
    values = MemoryValues()
    await write(values, b"one", b"1")
    await write(values, b"one", b"again")
    assert list(values.values.values()) == [b"1"]
    await write(values, b"two", b"2")
    assert list(values.values.values()) == [b"2"], "its ticket is that of the first run's write"


async def test_answers_to_programs_that_never_come_back_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    values = MemoryValues()
    values.told = {"ended meanwhile": {1: 1}, "here/7275": {1: 0}}
    monkeypatch.setattr(keeper, "CLAIM_S", 0.0)
    topics, told = KeptTopics(values), list[int]()
    await topics.keeper.load()
    topics.publish("t", "news", b"hi", ("here/7275", 2), told.append)
    await asyncio.sleep(0.01)
    await topics.keeper.write()
    assert values.told == {"here/7275": {1: 0, 2: 0}}
    await topics.keeper.close()


async def loaded(values: MemoryValues) -> KeptStore:
    store = KeptStore(values)
    await store.keeper.load()
    return store


async def put(store: KeptStore, run: str, value: bytes) -> int:
    """Let a run set a key with its third ticket; return whether the key was there."""
    found = list[int]()
    store.ask("t", Request(int(Op.STORE_SET), "k", value, run, 3), lambda was, _, __: found.append(was))
    await store.keeper.write()
    return found[0]


async def test_answers_by_the_program_alone_are_those_of_the_run_that_comes_back_and_of_no_later_one() -> None:
    values = MemoryValues()
    values.values, values.told = {("t", "k"): b"old"}, {"p": {3: 0}}
    store = await loaded(values)
    store.returned("p/aa")
    assert await put(store, "p/aa", b"again") == 0, "as it was answered"
    assert values.values == {("t", "k"): b"old"}
    assert values.told == {"p/aa": {3: 0}}
    store.keeper._claims.cancel()  # type: ignore[union-attr]
    store = await loaded(values)  # control dies
    store.returned("p/aa")
    assert await put(store, "p/aa", b"again") == 0
    store.leave("p/aa")
    assert await put(store, "p/bb", b"new") == 1
    assert values.values == {("t", "k"): b"new"}
    assert values.told == {"p/bb": {3: 1}}
    store.keeper._claims.cancel()  # type: ignore[union-attr]


async def test_a_run_that_ends_takes_the_answers_by_its_program_along() -> None:
    values = MemoryValues()
    values.values, values.told = {("t", "k"): b"old"}, {"p": {3: 0}}
    store = await loaded(values)
    store.leave("p/aa")
    assert await put(store, "p/bb", b"new") == 1
    assert values.values == {("t", "k"): b"new"}
    await store.keeper.close()


async def test_no_more_runs_have_answers_than_may_and_the_redis_has_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "TOLD_PROGRAMS", 2)
    values = MemoryValues()
    store = await loaded(values)
    for run in ("a/1", "b/1", "c/1"):
        await put(store, run, b"v")
    assert values.told.keys() == {"b/1", "c/1"}
    await store.keeper.close()


async def test_a_run_has_no_subscription_of_the_run_before() -> None:
    values = MemoryValues()
    values.values = {("t", "s/p/1"): b"news", ("t", "s/p/2"): b"news", ("t", "m/5"): b"hi", ("t", "p/p/1/0"): b"5"}
    host, topics = Host(), KeptTopics(values)
    await topics.keeper.load()
    host.core.lifecycle.topics = topics
    guest = host.start("p", tenant="t", durable=True, epoch=1, run=b"two")
    early = guest.put(Op.NEXT_MESSAGE, a=1, wait=True)
    host.flush()
    host.collect()
    assert isinstance(guest.answer(early).error, UnknownResource)
    topics.publish("t", "news", b"to nobody", ("q/1", 1), lambda _: None)
    guest.put(Op.SUBSCRIBE, a=1, payload=b"other")
    asked = guest.put(Op.NEXT_MESSAGE, a=1, wait=True)
    host.flush()
    await topics.keeper.write()
    assert {key for _, key in values.values} == {"s/p/1"}
    topics.publish("t", "other", b"mine", ("q/1", 2), lambda _: None)
    await topics.keeper.write()
    host.collect()
    assert guest.answered(asked)
    await topics.keeper.close()
