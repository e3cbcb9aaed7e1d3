"""Who gives way for memory, as a function: the order within a tenant, shares between tenants, never too many."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tartlet_control.order.credit import SHARE, Credit
from tartlet_control.order.yielding import Holder, ending, yielding

holders = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.integers(0, 9), st.booleans(), st.booleans(), st.booleans()),
    min_size=1,
    max_size=8,
)


def made(rows: list[tuple[str, int, int, bool, bool, bool]]) -> list[Holder]:
    return [
        Holder(i, t, held, (float(r), i), rests, may, new, rests=rests)
        for i, (t, held, r, rests, may, new) in enumerate(rows)
    ]


@given(holders, st.integers(1, 20))
def test_no_more_give_way_than_needed_and_none_that_may_not(
    rows: list[tuple[str, int, int, bool, bool, bool]], asked: int
) -> None:
    asker, *others = made(rows)
    total = sum(h.held for h in (asker, *others))
    chosen = yielding(asker, others, asked, total, {})
    assert len(set(chosen)) == len(chosen) <= len(others)
    assert all(h.may_yield and h.held for h in chosen)
    assert sum(h.held for h in chosen[:-1]) < asked
    for holder in chosen:
        if holder.tenant == asker.tenant and not holder.rests:
            assert holder.rank > asker.rank


@given(holders, st.integers(1, 20))
def test_a_tenant_within_its_share_never_gives_way_to_one_over_its_share(
    rows: list[tuple[str, int, int, bool, bool, bool]], asked: int
) -> None:
    asker, *others = made(rows)
    total = sum(h.held for h in (asker, *others))
    tenants = {h.tenant for h in (asker, *others)}
    share = total / len(tenants)
    held = {t: sum(h.held for h in (asker, *others) if h.tenant == t) for t in tenants}
    chosen = yielding(asker, others, asked, total, {})
    if held[asker.tenant] + asked > share:
        for tenant in tenants - {asker.tenant}:
            if held[tenant] <= share:
                stands_still = all(h.rests for h in others)
                assert not [h for h in chosen if h.tenant == tenant and not stands_still]


def test_the_last_in_the_order_gives_way_first_and_resting_programs_before() -> None:
    asker = Holder("asker", "", 1, (1.0,))
    others = [
        Holder("second", "", 4, (2.0,)),
        Holder("last", "", 4, (3.0,)),
        Holder("rests", "", 4, (0.0,), rests=True),
    ]
    assert [h.key for h in yielding(asker, others, 1, 13, {})] == ["rests"]
    assert [h.key for h in yielding(asker, others, 8, 13, {})] == ["rests", "last"]
    assert [h.key for h in yielding(others[1], [asker, others[0]], 2, 13, {})] == []


def test_what_was_made_again_lately_stays_unless_the_first_of_all_asks() -> None:
    first, middle = Holder("first", "", 1, (1.0,)), Holder("middle", "", 1, (2.0,))
    fresh = Holder("fresh", "", 4, (3.0,), fresh=True)
    assert yielding(middle, [first, fresh], 1, 6, {}) == []
    assert yielding(first, [middle, fresh], 1, 6, {}) == [fresh]


def test_without_credit_nobody_gives_way_while_another_program_goes_on_by_itself() -> None:
    asker, last = Holder("asker", "", 1, (1.0,)), Holder("last", "", 4, (3.0,), cost=64)
    busy, stuck = Holder("busy", "", 4, (2.0,), cost=64), Holder("stuck", "", 4, (2.0,), stalled=True, cost=64)
    assert yielding(asker, [busy, last], 1, 9, {}, credit=63) == []
    assert yielding(asker, [busy, last], 8, 9, {}, credit=100) == [last], "the credit is for one"
    still = Holder("last", "", 4, (3.0,), stalled=True, cost=64)
    assert yielding(asker, [stuck, still], 1, 9, {}, credit=-500) == [still], "somebody always goes on"
    away = Holder("away", "", 4, (0.0,), rests=True, cost=64)
    assert yielding(asker, [busy, away], 1, 9, {}, credit=-500) == [away]


def test_a_tenant_falls_below_its_share_only_with_credit_or_for_an_asker_that_is_tired() -> None:
    asker, busy = Holder("new", "small", 0, (99.0,)), Holder("busy", "small", 1, (1.0,))
    whole = Holder("whole", "flood", 9, (0.0,), cost=144)
    assert yielding(asker, [busy, whole], 1, 10, {}, credit=0) == []
    assert yielding(asker, [busy, whole], 1, 10, {}, credit=144) == [whole]
    assert yielding(asker, [busy, whole], 1, 10, {}, credit=0, tired=True) == [whole]
    flood = [Holder(i, "flood", 1, (float(i),), cost=16) for i in range(9)]
    assert yielding(asker, [busy, *flood], 1, 10, {}, credit=0) == [flood[8]]


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 300)), max_size=30), st.integers(1, 200))
def test_what_is_spent_with_credit_is_a_part_of_what_was_computed(steps: list[tuple[int, int]], most: int) -> None:
    credit, computed, spent = Credit(most), 0, 0
    for more, cost in steps:
        computed += more
        credit.earn(computed)
        assert credit.left <= most
        if cost <= credit.left:
            credit.spend(cost)
            spent += cost
    assert spent <= SHARE * computed + 1e-6


def test_a_flooding_tenant_gives_way_to_one_within_its_share_however_old_its_programs_are() -> None:
    flood = [Holder(i, "flood", 2, (float(i),)) for i in range(5)]
    newcomer = Holder("new", "small", 0, (99.0,))
    assert [h.key for h in yielding(newcomer, flood, 4, 10, {})] == [4, 3]
    assert yielding(flood[0], [*flood[1:], Holder("new", "small", 2, (99.0,))], 2, 10, {}) == [flood[4]]
    assert yielding(newcomer, flood, 4, 10, {"flood": 9.0}) == [], "its share is one page of ten"


fixed = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.booleans(), st.booleans()), min_size=1, max_size=8
)


@given(fixed, st.integers(0, 4), st.integers(1, 20), st.booleans(), st.booleans())
def test_a_program_of_a_tenant_within_its_share_never_ends_and_ends_only_those_over_theirs(
    rows: list[tuple[str, int, bool, bool]], free: int, asked: int, may_yield: bool, tired: bool
) -> None:
    others = [Holder(i, t, n, (0.0,), idle, not stuck, fixed=stuck) for i, (t, n, idle, stuck) in enumerate(rows)]
    asker = Holder(-1, "a", 0, (1.0,), may_yield=may_yield, created=9)
    total = sum(h.held for h in others) + free
    held = {
        tenant: sum(h.held for h in (asker, *others) if h.tenant == tenant) for tenant in {"a", *(r[0] for r in rows)}
    }
    share = total / len(held)
    chosen = ending(asker, others, asked, free, total, {}, tired=tired)
    assert len(set(chosen)) == len(chosen)
    for holder in chosen:
        assert holder is asker or holder.fixed
        if holder.tenant != "a":
            assert held[holder.tenant] > share, "its tenant is over its share until enough have ended"
            held[holder.tenant] -= holder.held
    gone = sum(h.held for h in chosen if h is not asker)
    coming = free + sum(h.held for h in others if not h.fixed)
    if held["a"] + asked <= share:
        assert asker not in chosen
        if tired or not may_yield or all(h.idle for h in others):
            assert coming + gone >= asked
    elif asker not in chosen:
        assert all(h.tenant == "a" for h in chosen)
