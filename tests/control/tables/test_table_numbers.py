"""The numbers of an engine's page tables are shared by tenant, as its pages are."""

from __future__ import annotations

import pytest

from tartlet_common import abi
from tartlet_common.abi import Op
from tartlet_common.errors.registry import TenantOverShare
from tartlet_control.core.places.memory import FAIR_S
from tartlet_worker.fake import FakeOptions
from tests.control.harness import Guest, Host

SIZE, MOST = 4, 64


def few_numbers() -> Host:
    host = Host(FakeOptions(page_size=SIZE, num_pages=256, num_embeds=256, num_slots=64))
    host.engine.tables.most = MOST
    return host


def fork(guest: Guest, first: int, count: int, *, queue: int = 0) -> None:
    """Fork a program's table 0, of one page, so many times."""
    for table in range(first, first + count):
        guest.table(table, 0, keep=SIZE, queue=queue)


def fill(host: Host, tenant: str, programs: int, tables: int, *, masked: bool = False) -> list[Guest]:
    """Start programs with so many tables of one filled page."""
    guests = [host.start(tenant=tenant) for _ in range(programs)]
    for guest in guests:
        guest.table(0, new=1)
        guest.alloc(Op.ALLOC_EMB, range(SIZE))
        guest.embed([*range(SIZE)], [guest.handle] * SIZE, [*range(SIZE)])
        guest.forward_table(0, 0, [*range(SIZE)])
        if masked:
            guest.put(Op.MASK_TABLE, a=0, b=0, c=1, payload=abi.u32([1]))
        fork(guest, 1, tables - 1)
        host.run()
    return guests


def errors(guest: Guest) -> set[type[Exception]]:
    return {type(answer.error) for answer in guest.poisons()}


def held(host: Host) -> dict[str, int]:
    host.core.check_ledgers()
    return host.engine.tables.counts


@pytest.mark.parametrize("queue", [0, 1])
def test_a_tenant_gets_its_share_of_the_numbers_from_one_that_took_most_and_then_is_refused(queue: int) -> None:
    host = few_numbers()
    flood = fill(host, "flood", 8, 7)
    assert held(host) == {"flood": MOST - MOST // 8}
    flood[0].table(20, new=1)
    host.run()
    assert errors(flood[0]) == {TenantOverShare}, "the last eighth is for others"
    [calm] = fill(host, "calm", 1, 1)
    if queue:
        calm.put(Op.CREATE_QUEUE, queue=queue)
    fork(calm, 1, MOST // 2 - 1, queue=queue)
    host.run()
    assert held(host)["calm"] > MOST // 8
    host.clock.advance(FAIR_S)  # until then it waits for what would have to be computed again
    host.run()
    assert held(host)["calm"] == MOST // 2
    assert host.core.rebuilder.counters.gave_way, "the flood has given way, for a while"
    assert not calm.poisons()
    calm.table(60, new=1)
    host.run()
    assert errors(calm) == {TenantOverShare}
    assert [guest.killed for guest in (*flood, calm)] == [None] * 9
    host.end(calm)
    for guest in flood:
        guest.embed([0], [1], [0])  # something to do, for which it comes back
    host.run()
    assert held(host) == {"flood": MOST - MOST // 8}, "all that gave way are back"
    for guest in flood:
        host.end(guest)
    host.run()
    host.check_idle()
    assert host.engine.tables.num_held == host.engine.prefixes.num_branches


def test_programs_that_cant_give_way_end_for_a_tenant_within_its_share_the_newest_first() -> None:
    host = few_numbers()
    flood = fill(host, "flood", 4, 14, masked=True)
    [calm] = fill(host, "calm", 1, 10)
    assert held(host)["calm"] == 10
    assert [type(guest.killed) for guest in flood] == [type(None)] * 3 + [TenantOverShare]
    assert not calm.poisons()


def test_the_prefix_cache_gives_its_numbers_to_programs() -> None:
    host = few_numbers()
    for _ in range(40):
        [guest] = fill(host, "a", 1, 1)
        host.end(guest)
    assert host.engine.prefixes.num_branches == 40
    fill(host, "a", 1, MOST - MOST // 8)
    assert held(host) == {"a": MOST - MOST // 8}
    [other] = fill(host, "b", 1, MOST // 8)
    assert not other.poisons()
    assert held(host)["b"] == MOST // 8
