from __future__ import annotations

from math import inf

import pytest

from tartlet_common.abi import Op
from tartlet_control.batching.return_times import PATIENCE, SLACK_S
from tartlet_worker.fake import FakeOptions
from tests.control.batching.test_policies import SMALL, ready
from tests.control.harness import Guest, Host

STEP_S, FIXED_S, RETURN_S = 0.011, 0.010, 0.002


def token(guest: Guest) -> None:
    guest.embed([0], [5], [0])
    guest.forward([], [0], [], [1])
    guest.sample(1, 0)


def engine_of_fixed_cost(host: Host) -> None:
    for tokens in (1, 2, 4) * 40:
        host.batcher.times.add(tokens, FIXED_S + tokens * (STEP_S - FIXED_S))


def a_turn(host: Host, *guests: Guest, returns_s: float = RETURN_S) -> None:
    """Run a step of these guests, and the time until they ask for more."""
    for guest in guests:
        token(guest)
    host.pump()
    host.answer()
    host.clock.advance(returns_s)


def two(options: FakeOptions = SMALL) -> tuple[Host, Guest, Guest]:
    """Make a guest that was seen to come back soon, and another guest."""
    host = Host(options)
    a, b = ready(host, 2)
    a_turn(host, a)
    a_turn(host, a)
    engine_of_fixed_cost(host)
    host.steps.clear()
    return host, a, b


def returns_s(host: Host, guest: Guest) -> float:
    return host.core.lifecycle.programs[guest.program_id].queues[0].returns_s


def test_the_second_step_is_not_formed_for_those_who_can_meet_the_first() -> None:
    host, a, b = two()
    token(a)
    host.pump()
    token(b)
    host.clock.advance(STEP_S)
    host.pump()
    assert len(host.steps) == 1  # b waits on
    host.answer()
    host.pump()
    assert len(host.steps) == 1
    assert host.batcher.look_at == pytest.approx(host.clock.now() + PATIENCE * RETURN_S + SLACK_S)
    host.clock.advance(RETURN_S)
    token(a)
    host.pump()
    assert [len(batch.lane) for batch in host.steps[1].batches] == [2, 2, 2]


@pytest.mark.parametrize("ahead", [False, True])
def test_programs_that_run_ahead_are_in_each_step_anyway_so_others_are_waited_for_less(*, ahead: bool) -> None:
    host, a, b = two()
    (c,) = ready(host, 1)
    for guest in (a, b, c) if ahead else (a,):
        token(guest)
    host.pump()
    token(b)
    token(c)
    host.clock.advance(STEP_S)
    host.pump()
    assert len(host.steps) == 1 + ahead


def test_who_does_not_come_back_is_waited_for_once() -> None:
    host, a, b = two()
    token(a)
    host.pump()
    host.answer()
    token(b)
    host.pump()
    assert len(host.steps) == 1
    host.clock.advance(PATIENCE * RETURN_S + SLACK_S)
    host.pump()
    assert len(host.steps) == 2
    host.answer()
    token(b)
    host.pump()
    assert len(host.steps) == 3


def test_an_end_is_not_waited_for() -> None:
    host, a, b = two()
    token(a)
    host.pump()
    host.answer()
    host.end(a)
    token(b)
    host.pump()
    assert len(host.steps) == 2


def test_a_full_batch_waits_for_nobody() -> None:
    host, a, b = two(FakeOptions(page_size=4, num_pages=64, num_embeds=64, num_slots=64, max_batch_commands=1))
    token(a)
    host.pump()
    host.answer()
    token(b)
    host.pump()
    assert len(host.steps) == 2


def test_high_priority_waits_for_nobody() -> None:
    host, a, b = two()
    token(a)
    host.pump()
    host.answer()
    b.put(Op.SET_QUEUE_PRIORITY, a=2)
    token(b)
    host.pump()
    assert len(host.steps) == 2


def test_one_long_call_does_not_hide_how_soon_it_comes_back_usually() -> None:
    host, a, _ = two()
    assert returns_s(host, a) == pytest.approx(RETURN_S)
    a_turn(host, a, returns_s=60.0)
    a_turn(host, a)
    assert returns_s(host, a) < 2 * RETURN_S + SLACK_S


def test_who_only_frees_something_is_not_back() -> None:
    host, a, _ = two()
    token(a)
    host.pump()
    host.answer()
    a.put(Op.DEALLOC_EMB)
    host.clock.advance(RETURN_S / 2)
    host.pump()
    assert host.batcher.return_times.expected(host.clock.now())[0] == 1
    host.clock.advance(RETURN_S)
    token(a)
    host.pump()
    assert returns_s(host, a) > RETURN_S


def test_nothing_is_known_of_the_first() -> None:
    host, _, b = two()
    assert returns_s(host, b) == inf
