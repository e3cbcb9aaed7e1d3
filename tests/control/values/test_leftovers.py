"""What is kept of programs' last calls for a control that dies: by run, and no longer than anybody may ask for it."""

from __future__ import annotations

import asyncio

import pytest

from tartlet_common.abi import Op
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
