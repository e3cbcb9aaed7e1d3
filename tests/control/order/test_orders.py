"""Orders of programs: the paper's example, starvation, total ranks, and no idle slot while a call waits."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tartlet_control.order import book as accounts
from tartlet_control.order.book import Book, Thread
from tartlet_control.order.orders import ORDERS, Order, chosen, starved
from tartlet_control.order.settings import PREEMPTS
from tartlet_control.placement.policies import Placement
from tartlet_control.simulation.costs import UNIT, Costs
from tartlet_control.simulation.load import Trace
from tartlet_control.simulation.loop import _Call, _Fleet, _Server, simulate

FIGURE_2 = {"A": (4, 3, 1, 1), "B": (3, 3, 4), "C": (1, 2), "D": (4,)}
"""Decode steps of each program's calls."""
ONE = Costs(fixed_s=1.0, decode_s=0.0, prefill_s=0.0, slots=1, every=1)


def chain(name: str, arrival_s: float, steps: tuple[int, ...], prefill: int = 0) -> Trace:
    return Trace(name, arrival_s, tuple(((prefill, n),) for n in steps))


def waits(order: Order) -> list[float]:
    traces = [chain(name, 0.0, steps) for name, steps in FIGURE_2.items()]
    ends = simulate(traces, order, UNIT).response_s
    return [end - sum(steps) for end, steps in zip(ends, FIGURE_2.values(), strict=True)]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        # a step of two calls is half a unit of service for each
        (Order("fcfs"), [3, 4, 7, 4]),
        (Order("mlfq", (0.5, 1.5), starved_at=0), [3, 3, 3, 9]),
        (Order("plas", (0.5,), starved_at=0), [3, 4, 4, 1]),
    ],
    ids=["fcfs", "mlfq", "plas"],
)
def test_figure_2_waits_18_18_and_12_steps(order: Order, expected: list[int]) -> None:
    assert sum(expected) == (12 if order.name == "plas" else 18)
    assert waits(order) == expected


def test_figure_2_nothing_waits_less_than_with_foresight() -> None:
    by_order = {name: sum(waits(Order(name, (0.5, 1.5), starved_at=0))) for name in ORDERS}
    assert by_order["srpt"] <= min(by_order.values())


programs = st.lists(
    st.tuples(st.integers(0, 20), st.lists(st.integers(1, 6), min_size=1, max_size=4)), min_size=1, max_size=8
)


@pytest.mark.parametrize("name", ORDERS)
@settings(deadline=None)
@given(load=programs)
def test_no_order_leaves_the_engine_idle_while_a_call_waits(name: str, load: list[tuple[int, list[int]]]) -> None:
    traces = [chain(str(i), at, tuple(steps)) for i, (at, steps) in enumerate(sorted(load, key=lambda p: p[0]))]
    response = simulate(traces, Order(name), ONE).response_s
    last = max(trace.arrival_s + took for trace, took in zip(traces, response, strict=True))
    free_at = 0.0
    for trace in traces:  # whatever the order, one slot is busy from an arrival until all that arrived is done
        free_at = max(free_at, trace.arrival_s) + trace.decoded
    assert last == free_at


class Watched(_Fleet):
    """A simulation whose rounds are watched: whatever waits is in a round's step as long as the step has a slot."""

    slot_steps = 0

    def _round(self, server: _Server) -> None:
        waiting = len(server.calls)
        super()._round(server)
        running = [call for call in server.calls if call.thread.waits_since is None]
        assert len(running) == min(waiting, self.costs.slots)

    def _finish(self, server: _Server, chosen: list[_Call], steps: int) -> None:
        self.slot_steps += len(chosen) * steps
        super()._finish(server, chosen, steps)


waves = st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=3), min_size=1, max_size=3)


@pytest.mark.parametrize("name", ORDERS)
@settings(max_examples=30)
@given(
    load=st.lists(st.tuples(st.integers(0, 20), waves), min_size=1, max_size=6),
    slots=st.integers(2, 4),
    every=st.integers(1, 2),
    preempt=st.sampled_from(PREEMPTS),
)
def test_no_order_leaves_one_of_several_slots_empty_while_a_thread_waits(
    name: str, load: list[tuple[int, list[list[int]]]], slots: int, every: int, preempt: str
) -> None:
    traces = [
        Trace(str(i), at, tuple(tuple((0, n) for n in wave) for wave in program))
        for i, (at, program) in enumerate(sorted(load, key=lambda p: p[0]))
    ]
    costs = Costs(fixed_s=1.0, decode_s=0.0, prefill_s=0.0, slots=slots, every=every)
    order = Order(name, (1.0, 2.0), starved_at=2.0, preempt=preempt)
    fleet = Watched(traces, order, costs, 1, Placement(), histories=False)
    fleet.run()
    assert fleet.slot_steps == sum(trace.decoded for trace in traces), "each token took one slot of one step"


times = st.floats(0, 100)


@pytest.mark.parametrize("name", ORDERS)
@given(served=st.lists(st.tuples(times, times), min_size=2, max_size=6), now=st.floats(200, 300))
def test_ranks_of_two_programs_always_differ(name: str, served: list[tuple[float, float]], now: float) -> None:
    order, book = Order(name), Book()
    threads = []
    for number, (arrived, service) in enumerate(served):
        thread = Thread(book.add(str(number), ("", "p", ""), arrived))
        accounts.waits(thread, arrived)
        accounts.runs(thread, arrived + 1)
        accounts.serve(thread, service)
        accounts.waits(thread, arrived + 2)
        threads.append(thread)
    ranks = [order.rank(thread, now) for thread in threads]
    assert len(set(ranks)) == len(ranks)
    assert ranks == [order.rank(thread, now) for thread in threads]


@given(served=st.lists(st.tuples(times, times), min_size=2, max_size=6), now=st.floats(200, 300))
def test_while_no_run_is_known_programs_go_as_their_attained_service_has_it(
    served: list[tuple[float, float]], now: float
) -> None:
    book, threads = Book(), []
    for number, (arrived, service) in enumerate(served):
        threads.append(Thread(book.add(str(number), ("", "p", ""), arrived)))
        accounts.waits(threads[-1], arrived)
        accounts.serve(threads[-1], service)
    gittins, plas = Order("gittins", starved_at=0), Order("plas", starved_at=0)
    assert sorted(threads, key=lambda t: gittins.rank(t, now)) == sorted(threads, key=lambda t: plas.rank(t, now))


@pytest.mark.parametrize("name", ["mlfq", "plas", "atlas", "gittins"])
def test_a_long_program_among_short_ones_waits_no_longer_than_its_bound(name: str) -> None:
    short = [chain("short", 2.0 * at, (2,)) for at in range(200)]
    load = [chain("long", 0.0, (30,)), *short]
    bound, quantum = 4.0, 2.0
    [bounded, *_] = simulate(load, Order(name, (quantum, 4.0), starved_at=bound), ONE).response_s
    [unbounded, *_] = simulate(load, Order(name, (quantum, 4.0), starved_at=0.0), ONE).response_s
    assert unbounded > 400, "without a bound, the long program goes last"
    # it has had s steps after at most bound * s of waiting, and one quantum more to be noticed
    assert bounded <= 30 * (1 + bound) + bound * quantum


def test_a_boost_lasts_one_quantum_and_forgives_the_call_alone() -> None:
    order = Order("plas", (1.0, 2.0), starved_at=4.0)
    thread = Thread(Book().add("p", ("", "p", ""), 0.0))
    accounts.waits(thread, 0.0)
    accounts.runs(thread, 0.0)
    accounts.serve(thread, 3.0)
    accounts.waits(thread, 3.0)
    assert order.rank(thread, 14.9)[0] == 2
    assert starved(order, thread, 15.0)
    accounts.boost(thread, order.quantum_s, 15.0)
    accounts.runs(thread, 15.0)
    assert not starved(order, thread, 15.0)
    assert order.rank(thread, 15.0)[0] == 0
    accounts.serve(thread, 1.0)
    assert order.rank(thread, 16.0)[0] == 2


def test_a_call_of_mlfq_starves_by_itself_and_is_demoted_however_long_its_program_waited_before() -> None:
    order = Order("mlfq", (1.0, 2.0), starved_at=4.0)
    program = Book().add("p", ("", "p", ""), 0.0)
    program.waited_s = 1000.0
    busy, starves = Thread(program), Thread(program)
    levels = []
    accounts.waits(busy, 0.0)
    accounts.waits(starves, 0.0)
    for now in range(4):
        chosen(order, busy, now)
        accounts.runs(busy, now)
        accounts.serve(busy, 1.0)
        accounts.waits(busy, now + 1)
        levels.append(order.rank(busy, now + 1)[0])
    assert levels == [1, 2, 2, 2]
    assert starved(order, starves, 4.0)
    assert not starved(order, busy, 4.0)
    assert starved(Order("plas", (1.0, 2.0), starved_at=4.0), busy, 4.0), "of all its calls, the program has waited"
    chosen(order, starves, 4.0)
    assert order.rank(busy, 4.0)[0] == 2, "a call that starved takes no other call of its program along"


def test_a_chain_counts_its_longest_path_and_all_its_service() -> None:
    program = Book().add("p", ("", "p", ""), 0.0)
    side_by_side = [Thread(program), Thread(program)]
    for thread in side_by_side:
        accounts.waits(thread, 0.0)
    for thread, service in zip(side_by_side, (2.0, 3.0), strict=True):
        accounts.serve(thread, service)
    for thread in side_by_side:
        accounts.ends_call(thread, 5.0)
    accounts.waits(side_by_side[0], 6.0)
    accounts.serve(side_by_side[0], 1.0)
    assert (program.service_s, program.critical_s) == (6.0, 4.0)


def test_no_order_beats_knowing_the_future_on_one_slot() -> None:
    load = [chain(str(i), float(at), steps) for i, (at, steps) in enumerate([(0, (5, 5)), (1, (2,)), (2, (1, 1, 1))])]
    total = {name: sum(simulate(load, Order(name), ONE).response_s) for name in ORDERS}
    assert all(total["srpt"] <= other for other in total.values())
    assert len(set(itertools.chain(total.values()))) > 1
