"""`Ranking` keeps what waits sorted as sorting by `Order.rank` would, whatever is noted of programs meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tartlet_control.order import book
from tartlet_control.order.book import Program, Thread
from tartlet_control.order.expecting import expect
from tartlet_control.order.orders import LIVE, Order, Rank, chosen, starved
from tartlet_control.order.ranking import Ranking
from tartlet_control.order.sizes import History

FEW, MANY, THREADS = 4, 50, 3
ACTIONS = ("add", "discard", "waits", "runs", "idles", "withdraws", "serve", "end", "boost", "choose", "expect", "past")
steps = st.lists(
    st.tuples(
        st.sampled_from(ACTIONS),
        st.integers(0, MANY * THREADS - 1),
        st.sampled_from([0.0, 0.01, 0.1, 0.25, 1.0, 3.0]),
    ),
    min_size=5,
    max_size=80,
)


def act(action: str, thread: Thread, amount: float, order: Order, now: float) -> None:
    """Note something of a thread or its program, as control does."""
    match action:
        case "waits":
            book.waits(thread, now)
        case "runs":
            book.runs(thread, now)
        case "idles":
            book.idles(thread, now)
        case "withdraws":
            book.withdraws(thread)
        case "serve":
            book.serve(thread, amount, int(amount * 100))
        case "end":
            book.ends_call(thread, now)
        case "boost" if order.boosts and starved(order, thread, now):
            book.boost(thread, order.quantum_s, now)
        case "choose":
            chosen(order, thread, now)
        case "expect":
            expect(thread.program, int(amount * 100))
        case "past":
            order.history.ended(thread.program.key, amount, int(amount * 100))


def items(ranking: Ranking[Any], order: Order, now: float) -> list[Any]:
    return [item for _, _, item in ranking.ordered(order, now)]


@pytest.mark.parametrize("name", LIVE)
@settings(deadline=None)
@given(
    steps=steps,
    looks=st.integers(1, 7),
    every=st.integers(1, 3),
    preempt=st.sampled_from(["step", "step", "quantum", "call"]),
    many=st.booleans(),
)
def test_items_stand_where_sorting_all_by_rank_puts_them(
    name: str, steps: list[tuple[str, int, float]], looks: int, every: int, preempt: str, many: bool
) -> None:
    order = Order(name, (0.25, 1.0), 2.0, preempt, every, History())
    programs = [Program(n, ("", f"p{n % 2}", "")) for n in range(MANY if many else FEW)]
    threads = [Thread(program) for program in programs for _ in range(THREADS)]
    ranking: Ranking[int] = Ranking()
    here: dict[int, None] = {}
    now = 0.0
    if many:  # so that what is noted concerns a small part of what waits
        for which, thread in enumerate(threads):
            book.waits(thread, 0.01 * which)
            book.serve(thread, 0.003 * which)
            here[which] = None
            ranking.add(which, thread)
        now = 2.0
    for count, (action, chosen_one, amount) in enumerate(steps):
        which = chosen_one % len(threads)
        thread = threads[which]
        if action == "add":
            here[which] = None
            ranking.add(which, thread)
        elif action == "discard":
            here.pop(which, None)
            ranking.discard(which)
        else:
            act(action, thread, amount, order, now)
        now += amount
        if count % looks == 0:
            assert items(ranking, order, now) == sorted(here, key=lambda item: order.rank(threads[item], now))
    assert items(ranking, order, now + 9) == sorted(here, key=lambda item: order.rank(threads[item], now + 9))
    assert len(ranking) == len(here)
    for item in here:
        ranking.discard(item)
    assert not any(program.watchers for program in programs), "what left is not watched"


def test_another_order_ranks_everything_again() -> None:
    old, new = Thread(Program(0)), Thread(Program(1))
    ranking: Ranking[str] = Ranking()
    for name, thread, at in (("old", old, 0.0), ("new", new, 1.0)):
        book.waits(thread, at)
        ranking.add(name, thread)
    book.serve(old, 0.4)
    assert items(ranking, Order("fcfs"), 2.0) == ["old", "new"]
    assert items(ranking, Order("plas", starved_at=0), 2.0) == ["new", "old"]


@pytest.mark.parametrize("name", LIVE)
def test_only_what_changed_is_ranked_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    order = Order(name)
    ranking: Ranking[Any] = Ranking()
    threads = [Thread(Program(n)) for n in range(500)]
    for thread in threads:
        book.waits(thread, 0.0)
        ranking.add(thread, thread)
    ranking.ordered(order, 1.0)
    ranked: list[Thread] = []
    rank = Order.rank

    def noted(order: Order, thread: Thread, now: float) -> Rank:
        ranked.append(thread)
        return rank(order, thread, now)

    monkeypatch.setattr(Order, "rank", noted)
    book.serve(threads[7], 0.3)
    assert items(ranking, order, 1.1) == sorted(threads, key=lambda thread: rank(order, thread, 1.1))
    assert ranked == [threads[7]]


def test_a_kind_of_program_that_becomes_known_ranks_only_its_programs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    order = Order("gittins", history=History())
    for _ in range(100):  # one run more teaches little of all programs
        order.history.ended(("", "known", ""), 1.0)
    ranking: Ranking[Thread] = Ranking()
    threads = [Thread(Program(n, ("", f"kind {n % 50}", ""))) for n in range(500)]
    for thread in threads:
        book.waits(thread, 0.0)
        ranking.add(thread, thread)
    ranking.ordered(order, 1.0)
    ranked: list[str] = []
    rank = Order.rank

    def noted(order: Order, thread: Thread, now: float) -> Rank:
        ranked.append(thread.program.key[1])
        return rank(order, thread, now)

    monkeypatch.setattr(Order, "rank", noted)
    order.history.ended(("", "kind 7", ""), 0.1)
    assert items(ranking, order, 1.0) == sorted(threads, key=lambda thread: rank(order, thread, 1.0))
    assert ranked == ["kind 7"] * 10


@pytest.mark.parametrize("name", LIVE)
def test_steps_that_take_the_first_and_bring_them_back_keep_the_order(name: str) -> None:
    order = Order(name, (0.25, 1.0), 2.0)
    ranking: Ranking[Thread] = Ranking()
    threads = [Thread(Program(n)) for n in range(300)]
    for thread in threads:
        book.waits(thread, 0.0)
        ranking.add(thread, thread)
    now = 0.0
    for step in range(40):
        now += 0.05
        expected = sorted(ranking, key=lambda thread: order.rank(thread, now))
        found = items(ranking, order, now)
        assert found == expected
        taken = found[:20] if step % 3 else found[5:10] + found[100:120]
        for thread in taken:
            ranking.discard(thread)
            chosen(order, thread, now)
            book.runs(thread, now)
        for thread in taken[: 15 + step % 6]:
            book.serve(thread, 0.02, 1)
            book.waits(thread, now)
            ranking.add(thread, thread)
