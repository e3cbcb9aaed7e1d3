"""The books of an engine's pools: holders are counted, and `free + held = total` whatever happens."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tartlet_control.tables.ledger import LedgerFault, Pool


def test_a_page_with_two_holders_is_free_when_both_have_let_go() -> None:
    pool = Pool("KV pages", 4)
    ids = pool.take(3)
    pool.retain(ids[:1])
    pool.release(ids)
    assert (pool.num_free, pool.num_held) == (3, 1)
    assert ids[0] not in pool.take(3)
    pool.release(ids[:1])
    assert pool.num_held == 3
    pool.check()


def test_what_nobody_holds_is_neither_held_once_more_nor_let_go() -> None:
    pool = Pool("KV pages", 2)
    (page,) = pool.take(1)
    pool.release([page])
    for call in (pool.retain, pool.release):
        with pytest.raises(AssertionError):
            call([page])


def test_books_that_do_not_balance_are_told() -> None:
    pool = Pool("KV pages", 4)
    lost = pool.take(2)
    pool._refs[lost[0]] = 0
    with pytest.raises(LedgerFault, match="2 free \\+ 1 held != 4"):
        pool.check()


def test_a_pool_that_claims_millions_takes_the_memory_of_what_was_taken() -> None:
    tracemalloc.start()
    try:
        pool = Pool("KV pages", 1 << 24)
        pool.release(pool.take(1000))
        pool.check()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    assert (pool.num_free, pool.num_held) == (1 << 24, 0)
    assert len({*pool.take(500), *pool.take(1000)}) == 1500


@given(st.lists(st.tuples(st.sampled_from(["take", "retain", "release"]), st.integers(0, 7)), max_size=60))
def test_the_books_balance_after_every_call_and_agree_with_a_plain_count(calls: list[tuple[str, int]]) -> None:
    pool, holders = Pool("KV pages", 8), dict.fromkeys(range(8), 0)
    for call, n in calls:
        if call == "take" and n <= pool.num_free:
            for page in pool.take(n):
                assert holders[page] == 0, "it was held"  # also: it is one of the eight
                holders[page] = 1
        elif call != "take" and holders[n]:
            getattr(pool, call)([n])
            holders[n] += 1 if call == "retain" else -1
        pool.check()
        assert pool.num_held == sum(1 for count in holders.values() if count)
        assert pool.num_free + pool.num_held == pool.total
