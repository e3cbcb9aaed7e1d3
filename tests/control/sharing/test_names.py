"""Programs name what they computed, and later programs of their tenant import it instead of computing it."""

from __future__ import annotations

import json
import struct
from array import array

import numpy as np
import pytest

from tartlet_common.abi import WHOLE_TABLE, Event, Op, u32
from tartlet_common.errors import registry as errors
from tartlet_control.sharing.names import MAX_NAMES, Key, Names, Version
from tartlet_control.tables.ledger import PAGES
from tests.control.harness import Answer, Guest, Host
from tests.control.sharing.test_reuse import OPTIONS, PROMPT, ask


def export(
    guest: Guest, name: str, *, count: int = WHOLE_TABLE, tail: tuple[int, ...] = (), table: int = 0, ttl_s: int = 0
) -> Answer:
    data = name.encode()
    payload = struct.pack("<I", ttl_s) + data + u32(tail)
    ticket = guest.put(Op.EXPORT_KVPAGE, a=table, b=count, c=len(data), payload=payload, wait=True)
    guest.host.run()
    return guest.answer(ticket)


def imported(guest: Guest, name: str) -> Answer:
    ticket = guest.put(Op.IMPORT_KVPAGE, payload=name.encode(), wait=True)
    guest.host.run()
    return guest.answer(ticket)


def tokens(answer: Answer) -> list[int]:
    found: list[int] = np.frombuffer(answer.payload[16:], "<u4").tolist()
    return found


def listed(guest: Guest) -> list[str]:
    ticket = guest.put(Op.GET_ALL_EXPORTED_KVPAGES, wait=True)
    guest.host.run()
    return [each["name"] for each in json.loads(guest.answer(ticket).payload)]


def test_a_name_outlives_its_program_and_saves_the_prefill_of_those_who_import_it() -> None:
    host = Host(OPTIONS, prefix_cache=False)
    first, _ = ask(host, PROMPT)
    told = export(first, "docs", tail=(7,))
    assert (told.a, told.b, len(told.payload)) == (16, 1, 16)
    host.end(first)
    assert host.engine.pools[PAGES].num_cached == 3
    second = host.start()
    assert tokens(imported(second, "docs")) == [*PROMPT, 7]
    before = host.engine.computed_tokens
    second.table(0, new=5)
    second.alloc(Op.ALLOC_EMB, range(17))
    second.embed(list(range(16)), [*PROMPT, 7], list(range(16)))
    second.forward_table(0, 0, list(range(16)))
    host.run()
    assert host.engine.computed_tokens - before == 4
    assert second.usage()["cached_tokens"] == 12
    assert ask(host, PROMPT)[1] == 15  # who hasn't imported it computes, because the cache is off
    host.check_idle()


def test_a_name_is_its_tenant_s_and_unknown_ones_fail_alone() -> None:
    host = Host(OPTIONS)
    export(ask(host, PROMPT, tenant="a")[0], "docs")
    other = host.start(tenant="b")
    assert isinstance(imported(other, "docs").error, errors.UnknownName)
    assert listed(other) == []
    assert not other.poisons()
    other.alloc(Op.ALLOC_EMB, [0], wait=True)
    host.run()
    assert other.answers[-1].event is Event.RESULT


def test_another_export_makes_another_version_and_the_same_tokens_do_not() -> None:
    host = Host(OPTIONS)
    guest, _ = ask(host, PROMPT)
    first = export(guest, "docs")
    assert export(guest, "docs").payload == first.payload
    assert export(ask(host, PROMPT)[0], "docs").b == 1
    second = export(guest, "docs", count=8)
    assert (second.a, second.b) == (8, 2)
    assert tokens(imported(host.start(), "docs")) == PROMPT[:8]
    unexport = guest.put(Op.UNEXPORT_KVPAGE, payload=b"docs", wait=True)
    host.run()
    assert guest.answer(unexport).event is Event.RESULT
    assert listed(guest) == []


def test_what_tokens_do_not_tell_is_not_exported() -> None:
    host = Host(OPTIONS)
    guest, _ = ask(host, PROMPT)
    assert isinstance(export(guest, "docs", table=9).error, errors.UnknownResource)
    assert isinstance(export(guest, "docs", count=16).error, errors.InvalidArgument)
    assert isinstance(export(guest, "").error, errors.InvalidArgument)
    guest.put(Op.MASK_TABLE, a=0, b=2, c=1, payload=u32([1]))
    refused = export(guest, "docs").error
    assert isinstance(refused, errors.NotPlain)
    assert refused.fields["call"] == "mask_table"


def test_names_are_computed_again_once_when_their_engine_is_lost() -> None:
    host = Host(OPTIONS)
    first, _ = ask(host, PROMPT)
    export(first, "docs")
    host.end(first)
    host.core.on_engine_gone(host.engine)
    host.join("next", OPTIONS)
    costs = []
    for _ in range(2):
        guest = host.start()
        costs.append(ask(host, tokens(imported(guest, "docs")), output=False)[1])
    assert costs == [15, 3]


def test_named_rows_go_after_all_that_is_cached_only() -> None:
    host = Host(OPTIONS)
    first, _ = ask(host, PROMPT)
    export(first, "docs")
    host.end(first)
    for n in range(60, 90):
        host.end(ask(host, [n, *PROMPT[1:]])[0])
    assert ask(host, PROMPT)[1] == 3


def test_a_name_pins_its_rows_until_it_expires() -> None:
    host = Host(OPTIONS)
    first, _ = ask(host, PROMPT)
    export(first, "docs", ttl_s=60)
    host.end(first)

    def crowd(of: int) -> None:
        for n in range(of, of + 30):
            host.end(ask(host, [n, *PROMPT[1:]])[0])

    crowd(60)
    reader, computed = ask(host, PROMPT)
    assert (computed, listed(reader)) == (3, ["docs"])
    host.end(reader)
    host.clock.advance(61.0)
    host.core.tick()
    crowd(100)
    reader, computed = ask(host, PROMPT)
    assert (computed, listed(reader)) == (15, [])
    host.end(reader)
    host.check_idle()


def test_an_export_waits_for_what_was_sent_and_fails_with_it() -> None:
    host = Host(OPTIONS)
    guest, _ = ask(host, PROMPT)
    guest.embed([20], [5], [15])
    guest.forward_table(0, 15, [20])
    ticket = guest.put(Op.EXPORT_KVPAGE, b=WHOLE_TABLE, c=1, payload=bytes(4) + b"x", wait=True)
    host.pump()
    assert not guest.answered(ticket)
    host.run()
    assert guest.answer(ticket).a == 16
    guest.alloc(Op.DEALLOC_EMB, [99])
    assert isinstance(export(guest, "y").error, errors.UnknownResource)


def version(number: int, *, ticket: int = 1, program: str = "p", count: int = 10, used_s: float = 0.0) -> Version:
    values = array("I", [number] * count)
    return Version(1, values, bytes([number]) * 16, [bytes([number])], program, ticket, 60.0, used_s)


def key(name: str, tenant: str = "t") -> Key:
    return Key(tenant, "model", name)


def test_an_export_that_is_told_again_takes_effect_once() -> None:
    names = Names(tenant_tokens=100, pins={})
    names.export(key("a"), version(1, ticket=5))
    names.export(key("a"), version(2, ticket=9, program="q"))
    names.export(key("a"), version(3, ticket=9, program="q"))
    found = names.find(key("a"))
    assert found is not None
    assert (found.number, found.digest) == (2, bytes([2]) * 16)


def test_commands_told_again_do_nothing_whatever_others_have_done_with_the_name_since() -> None:
    names, done = Names(tenant_tokens=100, pins={}), []
    names.on_done = lambda *of: done.append(of)
    first = names.export(key("a"), version(1, ticket=5))
    names.export(key("a"), version(2, ticket=3, program="q"))
    again = names.export(key("a"), version(1, ticket=5))
    assert (again.number, again.digest) == (first.number, first.digest), "the answer is what it was"
    found = names.find(key("a"))
    assert found is not None
    assert (found.number, found.program_id) == (2, "q")
    names.drop(key("a"), "q", 4)
    names.export(key("a"), version(1, ticket=5))
    assert names.find(key("a")) is None, "what was unexported stays so"
    names.export(key("a"), version(1, ticket=6))
    names.drop(key("a"), "q", 4)
    assert names.find(key("a")) is not None, "a name that was exported again isn't dropped by the command of before"
    with pytest.raises(errors.UnknownName):
        names.drop(key("b"), "q", 5)
    names.export(key("a"), version(3, ticket=1, program="p/next run"))
    found = names.find(key("a"))
    assert found is not None
    assert found.digest == bytes([3]) * 16
    assert set(done) == {(who, key("a")) for who in ("p", "q", "p/next run")}
    for who in ("p", "q", "p/next run"):
        names.ended(who)
    assert not list(names.all_done())


def test_a_tenant_s_budget_ends_its_own_names_that_nobody_imports_the_longest_unused_first() -> None:
    pins: dict[bytes, int] = {}
    names = Names(tenant_tokens=30, pins=pins)
    for n, name in enumerate("abc"):
        names.export(key(name), version(n, used_s=n))
        names.export(key(name, "other"), version(n))
    names.take(key("a"), "reader", 5.0)
    names.export(key("d"), version(7, used_s=6.0))
    assert [k.name for k, _ in names.listed("t", "model")] == ["a", "c", "d"]
    assert len(names.listed("other", "model")) == 3
    for name in "cd":
        names.take(key(name), "reader", 7.0)
    with pytest.raises(errors.NameBudgetExceeded):
        names.export(key("e"), version(8))
    names.leave("reader")
    names.expire(65.5)
    assert [k.name for k, _ in names.listed("t", "model")] == ["c", "d"]
    for k, _ in list(names):
        names.drop(k)
    assert not pins
    with pytest.raises(errors.UnknownName):
        names.drop(key("c"))


def test_a_tenant_has_so_many_names() -> None:
    names = Names(tenant_tokens=1 << 20, pins={})
    for n in range(MAX_NAMES + 1):
        names.export(key(str(n)), version(n % 256))
    assert len(names) == MAX_NAMES
    assert names.find(key("0")) is None
