"""A tenant fills an engine with contexts that can't give way; another tenant, within its share, never ends for that."""

from __future__ import annotations

from typing import Any

from tartlet_common import abi
from tartlet_common.abi import Op
from tartlet_common.errors.registry import OutOfPages, TenantOverShare
from tartlet_control.core.places.memory import PATIENCE_S, REST_S
from tartlet_worker.fake import FakeOptions
from tests.control.harness import Guest, Host

SIZE = 4
OPTIONS = FakeOptions(page_size=SIZE, num_pages=8, num_embeds=256, num_slots=64)


def fill(host: Host, tenant: str, pages: int, *, masked: bool = False, **fields: Any) -> tuple[Guest, int]:
    """Start a program that fills a context of so many pages; returns the ticket of its first token, too."""
    guest, count = host.start(tenant=tenant, name=tenant, **fields), pages * SIZE
    guest.table(0, new=pages)
    guest.alloc(Op.ALLOC_EMB, range(count + 1))
    guest.alloc(Op.ALLOC_SLOT, [0])
    guest.embed(list(range(count)), [7 + guest.handle] * count, list(range(count)))
    guest.forward_table(0, 0, list(range(count)), [count])
    if masked:
        guest.put(Op.MASK_TABLE, a=0, b=0, c=1, payload=abi.u32([1]))
    return guest, guest.sample(count, 0)


def finish(host: Host, *guests: Guest) -> None:
    for guest in guests:
        host.end(guest)
    host.run()
    host.check_idle()


def test_an_idle_context_that_cant_give_way_ends_for_a_tenant_within_its_share() -> None:
    host = Host(OPTIONS)
    flood, filled = fill(host, "flood", 8, masked=True)
    host.run()
    assert flood.answered(filled)
    calm, first = fill(host, "calm", 2)
    host.run()
    assert calm.answered(first)
    assert (type(flood.killed), calm.killed) == (TenantOverShare, None)
    finish(host, flood, calm)


def test_no_more_end_than_are_needed_the_newest_first_and_none_for_a_tenant_over_its_share() -> None:
    host = Host(OPTIONS)
    flood = [fill(host, "flood", 2, masked=True)[0] for _ in range(4)]
    host.run()
    calm, first = fill(host, "calm", 3)
    host.run()
    assert calm.answered(first)
    assert [type(guest.killed) for guest in flood] == [type(None), type(None), TenantOverShare, TenantOverShare]
    greedy, _ = fill(host, "calm", 5)
    host.run()
    assert isinstance(greedy.killed, OutOfPages), "with it, its tenant would be over its share"
    assert [guest.killed for guest in flood[:2]] == [None, None]
    finish(host, *flood, calm, greedy)


def test_a_busy_context_is_waited_for_but_not_without_end() -> None:
    host = Host(OPTIONS)
    flood, _ = fill(host, "flood", 8, masked=True)
    host.run()
    flood.forward_table(0, 8 * SIZE - 1, [0], [1])
    host.pump()
    calm, first = fill(host, "calm", 2)
    for _ in range(5):
        host.pump()
        host.clock.advance(PATIENCE_S / 10)
    assert (flood.killed, calm.killed, calm.answered(first)) == (None, None, False)
    host.clock.advance(PATIENCE_S)
    host.pump()
    assert isinstance(flood.killed, TenantOverShare)
    host.run()
    assert calm.answered(first)
    finish(host, flood, calm)


def test_within_one_tenant_the_asker_still_ends_for_older_ones() -> None:
    host = Host(OPTIONS)
    old, _ = fill(host, "a", 8, masked=True)
    host.run()
    new, _ = fill(host, "a", 2)
    host.run()
    assert (old.killed, type(new.killed)) == (None, OutOfPages)
    finish(host, old, new)


def test_a_suspended_program_within_its_tenants_share_comes_back() -> None:
    host = Host(OPTIONS)
    staying, _ = fill(host, "calm", 2)
    host.run()
    leaving, _ = fill(host, "calm", 3)
    host.run()
    flood = [fill(host, "flood", 2, masked=True)[0] for _ in range(3)]
    host.run()
    host.clock.advance(REST_S)
    host.run()
    assert host.core.rebuilder.counters.gave_way == 1
    leaving.embed([0], [0], [3 * SIZE - 1])
    leaving.forward_table(0, 3 * SIZE - 1, [0], [1])
    ticket = leaving.sample(1, 0)
    host.run()
    assert not leaving.answered(ticket), "with it, its tenant would be over its share"
    host.end(staying)
    host.run()
    assert leaving.answered(ticket)
    assert [type(guest.killed) for guest in flood] == [type(None), type(None), TenantOverShare]
    finish(host, *flood, leaving)
