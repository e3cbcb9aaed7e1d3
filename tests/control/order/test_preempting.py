"""When a call that was chosen may be stopped for others: at steps, every few steps, after a quantum, or not at all."""

from __future__ import annotations

import pytest

from tartlet_common.errors.registry import InvalidArgument
from tartlet_control.order import book
from tartlet_control.order.book import Program, Thread
from tartlet_control.order.orders import LIVE, Order, chosen
from tartlet_control.order.settings import order_of
from tartlet_control.order.sizes import History

STEP_S = 0.1


def served(order: Order, steps: int) -> list[int]:
    """Serve one of two calls a step, under round robin; returns which. The first call ends after six steps."""
    threads = [Thread(Program(n)) for n in range(2)]
    for thread in threads:
        book.waits(thread, 0.0)
    told, left, now = [], 6, 0.0
    for _ in range(steps):
        first = min(range(2), key=lambda n: order.rank(threads[n], now))
        told.append(first)
        chosen(order, threads[first], now)
        book.runs(threads[first], now)
        now += STEP_S
        book.serve(threads[first], STEP_S)
        left -= first == 0
        if first == 0 and not left:
            book.ends_call(threads[0], now)
        book.waits(threads[first], now)
    return told


def order(preempt: str, every: int = 1) -> Order:
    return order_of("round-robin", [2.5 * STEP_S, 5 * STEP_S], 0, History(), preempt, every)


@pytest.mark.parametrize(
    ("preempt", "every", "expected"),
    [
        ("step", 1, [0, 1, 0, 1, 0, 1, 0, 1]),
        ("step", 3, [0, 0, 0, 1, 1, 1, 0, 0]),
        ("quantum", 1, [0, 0, 0, 1, 1, 1, 0, 0]),
        ("call", 1, [0, 0, 0, 0, 0, 0, 1, 1]),
    ],
)
def test_a_call_is_stopped_when_the_setting_says(preempt: str, every: int, expected: list[int]) -> None:
    assert served(order(preempt, every), 8) == expected


@pytest.mark.parametrize("name", LIVE)
def test_a_call_that_starves_stops_none_that_cant_be_stopped(name: str) -> None:
    order = order_of(name, [1.0, 2.0], 4.0, History(), "call")
    starves, stays = (Thread(Program(n)) for n in range(2))
    book.waits(starves, 0.0)
    book.waits(stays, 1.0)
    chosen(order, stays, 1.0)
    book.runs(stays, 1.0)
    book.serve(stays, 0.5)
    book.waits(stays, 60.0)
    assert order.rank(stays, 100.0) < order.rank(starves, 100.0)


def test_mlfq_has_the_quantum_of_the_queue_that_the_call_itself_is_in() -> None:
    order = order_of("mlfq", [1.0, 8.0], 0, History(), "quantum")
    old = Program(0)
    old.service_s = 5.0
    call = Thread(old)
    book.waits(call, 0.0)
    chosen(order, call, 0.0)
    book.serve(call, 1.0)
    book.waits(call, 1.0)
    assert order.rank(call, 1.0)[0] == 1, "its program is in the second queue, whose quantum is 7 s"


@pytest.mark.parametrize(("preempt", "every"), [("never", 1), ("step", 0)])
def test_wrong_settings_are_refused(preempt: str, every: int) -> None:
    with pytest.raises(InvalidArgument):
        order(preempt, every)
