"""Whatever lies in the directory, control takes what makes sense and serves."""

from __future__ import annotations

import json
import random
from array import array
from typing import Any

import pytest

from tartlet_common.clock import SystemClock
from tartlet_common.errors.registry import UnknownName
from tartlet_control.directory import entries
from tartlet_control.directory.entries import BadEntry
from tartlet_control.directory.follower import Follower
from tartlet_control.directory.memory_store import MemoryStore, Shelf
from tartlet_control.order.sizes import Sizes
from tartlet_control.sharing.names import MAX_NAMES, Key
from tests.control.directory.test_follower import BIG, following, follows, sections, until, use
from tests.control.harness import Host
from tests.control.sharing.test_names import imported, tokens
from tests.control.sharing.test_reuse import ask

_HOST = Host(BIG)


async def left() -> Shelf:
    """Return what a control left that had names of two tenants, histories, rows and a program."""
    host, shelf = Host(BIG), Shelf()
    async with following(host, shelf):
        host.end(use(host, "docs", tenant="a"))
        use(host, "docs", tenant="b")
        await until(lambda: follows(host, shelf))
    return shelf


async def loaded(shelf: Shelf, **settings: Any) -> tuple[Host, Follower]:
    host = Host(BIG, **settings)
    follower = Follower(host.core, MemoryStore(shelf, 2), SystemClock())
    await follower.load()
    await until(lambda: follower.loaded)
    await follower.close()
    return host, follower


def key_of(host: Host, tenant: str, name: str = "docs") -> Key:
    return Key(tenant, host.engine.spec.model_digest, name)


async def test_random_bytes_anywhere_cost_their_entries_alone() -> None:
    pick = random.Random(26)
    held = sections(await left())
    for _ in range(60):
        damaged = {name: dict(fields) for name, fields in held.items()}
        for _ in range(3):
            fields = damaged[pick.choice(sorted(damaged))]
            field = pick.choice(sorted(fields))
            value = bytearray(fields[field])
            how = pick.randrange(4)
            if how == 0 and value:
                value[pick.randrange(len(value))] ^= 1 << pick.randrange(8)
            elif how == 1:
                value = value[: pick.randrange(len(value) + 1)]
            elif how == 2:
                value = bytearray(pick.randbytes(pick.randrange(60)))
            else:
                fields[pick.randbytes(pick.randrange(30))] = bytes(value)
            fields[field] = bytes(value)
        host, _ = await loaded(Shelf({1: (1, damaged)}, 1))
        for tenant in ("a", "b"):
            version = host.core.names.find(key_of(host, tenant))
            if version is not None:
                original = entries.version_of(
                    key_of(host, tenant),
                    entries.named_of(held["names"][entries.texts_field(key_of(host, tenant))]),
                    held["contexts"][entries.texts_field(key_of(host, tenant))],
                )
                assert (version.tokens, version.rows) == (original.tokens, original.rows)
        ask(host, list(range(40, 55)), tenant="a")
        host.check_idle()


async def test_a_name_that_was_given_to_another_tenant_is_left_out() -> None:
    shelf = await left()
    held = sections(shelf)
    host, follower = await loaded(shelf)
    assert follower.counters.left_out == 0
    stolen, own = (entries.texts_field(key_of(host, tenant)) for tenant in ("thief", "a"))
    for section in ("names", "contexts"):
        held[section][stolen] = held[section][own]
    host, follower = await loaded(shelf)
    assert follower.counters.left_out == 1
    thief = host.start(tenant="thief")
    assert isinstance(imported(thief, "docs").error, UnknownName)
    assert tokens(imported(host.start(tenant="a"), "docs"))


async def test_entries_of_another_release_are_left_out_and_bounds_hold() -> None:
    held = sections(await left())
    shelf = Shelf({1: (1, held)}, 1)
    held["a section of later"] = {b"x": b"y"}
    held["prefixes/e0"][b"short"] = b""
    held["placements"][b"\xff"] = b"{}"
    some = entries.texts_field(key_of(_HOST, "a"))
    for i in range(MAX_NAMES + 5):
        field = entries.texts_field(key_of(_HOST, "a", f"n{i}"))
        held["names"][field], held["contexts"][field] = held["names"][some], held["contexts"][some]
    host, follower = await loaded(shelf)
    assert follower.counters.left_out == 3
    assert len(host.core.names.listed("a", host.engine.spec.model_digest)) == MAX_NAMES
    host, _ = await loaded(shelf, name_tokens=20)
    assert [len(host.core.names.listed(t, host.engine.spec.model_digest)) for t in ("a", "b")] == [1, 1]


@pytest.mark.parametrize(
    "change",
    [
        {"seen": 0},
        {"seen": 1.5},
        {"seen": True},
        {"counts": {"80": 1.0}},
        {"counts": {"-1": 1.0}},
        {"counts": {"1": -1.0}},
        {"counts": {"1": float("nan")}},
        {"counts": {"1": 10**400}},
        {"counts": {"1": 1e300}},
        {"counts": {}},
        {"counts": []},
    ],
)
def test_a_history_that_makes_no_sense_is_none(change: dict[str, Any]) -> None:
    known = Sizes()
    known.add(0.5)
    value = entries.sizes(known)
    read = entries.sizes_of(value)
    assert (read.counts.tolist(), read.service_s, read.tokens) == (known.counts.tolist(), known.service_s, known.tokens)
    with pytest.raises(BadEntry):
        entries.sizes_of(json.dumps(json.loads(value) | change).encode())


@pytest.mark.parametrize(
    "change",
    [
        {"number": 0},
        {"digest": "zz"},
        {"page_size": 0},
        {"page_size": 8},
        {"ttl_s": -1},
        {"used_s": "now"},
        {"ticket": None},
    ],
)
def test_a_name_that_makes_no_sense_is_none(change: dict[str, Any]) -> None:
    use(_HOST, "one")
    key = key_of(_HOST, "", "one")
    version = _HOST.core.names.find(key)
    assert version is not None
    value, context = entries.named(version), entries.context(version)
    assert entries.version_of(key, entries.named_of(value), context).tokens == array("I", version.tokens)
    with pytest.raises(BadEntry):
        entries.version_of(key, entries.named_of(json.dumps(json.loads(value) | change).encode()), context)
    for broken in (b"", context[:-1], context[:16], context[:-4], bytes(16) + context[16:]):
        with pytest.raises(BadEntry):
            entries.version_of(key, entries.named_of(value), broken)
