"""`expect(tokens)`: what programs say sharpens `gittins`, and what they say wrongly harms only themselves for long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tartlet_common.abi import Op
from tartlet_control.order import book
from tartlet_control.order.book import Program, Thread
from tartlet_control.order.expecting import MOST_TOKENS, expect, index, left
from tartlet_control.order.orders import Order
from tartlet_control.order.sizes import History
from tests.control.harness import Guest, Host
from tests.control.order.test_live import ONE_AT_A_TIME, answer, prepared, served, state

TOKEN_S = 0.01
KEY = ("", "p", "")


def knowing() -> History:
    """Return what is known of runs of which half take 10 tokens and half 1000."""
    history = History()
    for tokens in [10, 1000] * 20:
        history.ended(KEY, tokens * TOKEN_S, tokens)
    return history


def run(program: Program, tokens: int) -> None:
    book.serve(Thread(program), tokens * TOKEN_S, tokens)


def test_of_two_runs_alike_the_one_that_says_less_goes_first() -> None:
    order = Order("gittins", starved_at=0, history=knowing())
    threads = [Thread(Program(n, KEY)) for n in range(3)]
    expect(threads[1].program, 10)
    expect(threads[2].program, 1000)
    ranks = [order.rank(thread, 0.0) for thread in threads]
    assert ranks[1] < ranks[0] < ranks[2]
    assert ranks[1][0] == pytest.approx(-1 / (10 * TOKEN_S))


def test_what_is_left_falls_as_the_program_computes_and_then_past_runs_count_again() -> None:
    history, program = knowing(), Program(0, KEY)
    expect(program, 100)
    run(program, 60)
    assert left(program) == 40
    assert index(history, program, program.service_s) == pytest.approx(1 / (40 * TOKEN_S))
    run(program, 40)
    assert left(program) == 0
    assert index(history, program, program.service_s) == history.index(KEY, program.service_s)
    expect(program, 0)
    assert index(history, program, program.service_s) == history.index(KEY, program.service_s)


@given(said=st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 200)), min_size=1, max_size=40))
def test_a_program_is_put_forward_for_at_most_twice_what_it_said(said: list[tuple[int, int]]) -> None:
    history, program = knowing(), Program(0, KEY)
    bound = 0
    for tokens, computes in said:
        expect(program, tokens)
        if tokens:
            own = program.tokens + 2 * min(tokens, MOST_TOKENS)
            bound = min(bound, own) if bound else own
        if program.tokens >= bound:
            assert index(history, program, program.service_s) <= history.index(KEY, program.service_s)
        assert 0 < index(history, program, program.service_s) < float("inf")
        run(program, computes)


def turns_before_the_last(*, lies: bool) -> int:
    """Return how many tokens four programs get before a fifth gets its first; they say "one more" each time, or not."""
    order = Order("gittins", starved_at=0, history=knowing())
    others, last = [Thread(Program(n, KEY)) for n in range(4)], Thread(Program(9, KEY))
    for thread in (*others, last):
        book.waits(thread, 0.0)
    while not last.program.tokens:
        for other in others:
            expect(other.program, int(lies))
        run(min([*others, last], key=lambda thread: order.rank(thread, 0.0)).program, 1)
    return sum(other.program.tokens for other in others)


def test_programs_that_always_say_one_token_gain_two_tokens_each_at_most() -> None:
    assert turns_before_the_last(lies=True) <= turns_before_the_last(lies=False) + 4 * 2


def test_a_token_costs_what_it_cost_in_past_runs_then_in_this_one_then_in_all() -> None:
    history, program, other = History(), Program(0, KEY), Program(1, ("", "other", ""))
    usual = history.token_s(program)
    history.ended(KEY, 5.0, 100)
    assert (history.token_s(program), history.token_s(other)) == (0.05, 0.05)
    book.serve(Thread(other), 1.0, 10)
    assert history.token_s(other) == 0.1
    assert usual > 0


def test_a_guests_word_reaches_the_order() -> None:
    host = Host(ONE_AT_A_TIME, order="gittins", order_starved_at=0)
    guests: list[Guest] = [prepared(host) for _ in range(3)]
    for guest, tokens in zip(guests, (500, 0, 5), strict=True):
        guest.put(Op.EXPECT, a=tokens)
        guest.forward([], [0], [], [0])
    host.flush()
    assert [state(g).account.expected_to for g in guests] == [500, 0, 5]
    # with nothing known of past runs, who says little goes first, and who says much last
    assert [handle for handle, _ in served(host, guests)] == [guests[2].handle, guests[1].handle, guests[0].handle]
    assert state(guests[2]).account.tokens == 1
    guests[2].forward([], [0], [], [0])
    host.pump()
    answer(host, device_s=0.5)
    assert state(guests[2]).account.tokens == 2
