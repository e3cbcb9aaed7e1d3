"""Clock and randomness of a guest: pure state, the same from the same start."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tartlet_runtime.wasm import GuestClock, GuestRandom
from tartlet_runtime.wasm.spares import Demand, target


@given(st.lists(st.one_of(st.none(), st.integers(0, 10**12)), max_size=50))
def test_the_clock_never_goes_back(steps: list[int | None]) -> None:
    clock = GuestClock(1000)
    last = clock.start_ns
    for step in steps:
        if step is None:
            now = clock.now_ns()
            assert now > last
        else:
            clock.advance_to(step)
            now = clock.peek_ns()
            assert now >= max(last, step)
        last = now


def test_peeking_is_no_reading() -> None:
    clock = GuestClock(0)
    assert clock.peek_ns() == clock.peek_ns() == 0
    assert clock.now_ns() == 1000


@given(st.lists(st.integers(0, 200), max_size=20))
def test_randomness_does_not_depend_on_how_it_is_drawn(sizes: list[int]) -> None:
    whole, parts = GuestRandom(b"seed"), GuestRandom(b"seed")
    assert b"".join(parts.take(size) for size in sizes) == whole.take(sum(sizes))


def test_seeds_give_different_streams() -> None:
    streams = {GuestRandom(b"%d" % seed).take(16) for seed in range(100)}
    assert len(streams) == 100


def test_demand_is_the_busiest_two_seconds_of_the_window() -> None:
    demand = Demand(window_s=60)
    for now_s in (0.0, 0.5, 0.9, 5.0, 61.0):
        demand.note(now_s)
    assert demand.peak(5.0) == 1  # the burst at 0 left the window when 61.0 was noted
    assert demand.peak(200.0) == 0


def test_a_burst_over_a_boundary_of_seconds_counts_whole() -> None:
    demand = Demand(window_s=60)
    for now_s in (10.8, 10.9, 11.0, 11.1, 12.0):
        demand.note(now_s)
    assert demand.peak(12.0) == 4


def test_launches_that_are_noted_late_count_when_they_were_asked_for() -> None:
    demand = Demand(window_s=60)
    for asked_s in (12.5, 12.6, 17.0, 12.7, 12.8, 17.1):
        demand.note(asked_s)
    assert demand.peak(18.0) == 4


def test_the_target_stays_in_its_bounds() -> None:
    assert [target(peak, least=2, most=10) for peak in (0, 5, 50)] == [2, 5, 10]
    assert target(0, least=20, most=10) == 10
