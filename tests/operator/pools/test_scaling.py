"""How many engines a pool gets for its work: pure decisions over played seconds."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tartlet_operator.api.autoscaling import Autoscaling
from tartlet_operator.pools.scaling import Load, Window, decide

IDLE = Load()
ONE = Load(programs=1)


def played(scaling: Autoscaling, loads: Iterable[Load], replicas: int, every_s: float = 1.0) -> list[int]:
    """Return the replicas after each second; each decision takes effect at once."""
    window, out = Window(), []
    for second, load in enumerate(loads):
        replicas = decide(scaling, replicas, load, window, 100.0 + second * every_s)
        out.append(replicas)
    return out


def bounds(least: int, most: int, down_s: int = 5) -> Autoscaling:
    return Autoscaling(min_replicas=least, max_replicas=most, scale_down_seconds=down_s)


def test_engines_come_at_once_up_to_the_bound_and_go_after_the_window() -> None:
    loads = [ONE, Load(2.5, programs=9), Load(99.0, programs=99), *[ONE] * 7]
    assert played(bounds(1, 4), loads, 1) == [1, 3, 4, 4, 4, 4, 4, 4, 1, 1]


def test_a_short_pause_takes_no_engine_away() -> None:
    loads = [Load(3.0, programs=9), ONE, ONE, ONE] * 5
    assert set(played(bounds(1, 4), loads, 1)) == {3}


def test_engines_that_compute_all_the_time_stay_though_nothing_waits() -> None:
    busy = Load(busy=2.95, programs=40)
    assert set(played(bounds(1, 4), [busy] * 20, 3)) == {3}
    assert played(bounds(1, 4), [Load(busy=1.02, programs=40)] * 10, 3)[-1] == 1  # one program alone fills an engine


def test_a_pool_goes_to_zero_without_programs_and_comes_back_for_a_run_that_waits() -> None:
    loads = [ONE, *[IDLE] * 6, Load(held=True), ONE, ONE]
    assert played(bounds(0, 4), loads, 1) == [1, 1, 1, 1, 1, 1, 0, 1, 1, 1]
    assert set(played(bounds(1, 4), [IDLE] * 20, 1)) == {1}


@pytest.mark.parametrize("load", [ONE, Load(busy=0.01), Load(waiting_s=0.001), Load(held=True)])
def test_whatever_is_there_to_do_keeps_the_last_engine(load: Load) -> None:
    assert set(played(bounds(0, 4), [load] * 20, 1)) == {1}


def test_whoever_was_not_looking_waits_a_whole_window() -> None:
    window, scaling = Window(), bounds(0, 4, down_s=5)
    for second in range(4):
        assert decide(scaling, 1, IDLE, window, second) == 1
    assert decide(scaling, 1, IDLE, window, 60.0) == 1, "control was away meanwhile"
    assert [decide(scaling, 1, IDLE, window, 60.0 + s) for s in range(1, 6)] == [1, 1, 1, 1, 0]


def test_a_number_out_of_bounds_is_put_right_at_once() -> None:
    assert played(bounds(2, 3), [IDLE], 0) == [2]
    assert played(bounds(2, 3), [IDLE], 9) == [3]


@given(
    st.lists(
        st.builds(
            Load,
            st.floats(0, 20),
            st.floats(0, 8),
            st.integers(0, 9),
            st.booleans(),
        ),
        max_size=60,
    ),
    st.integers(0, 3),
    st.integers(0, 5),
    st.integers(0, 9),
    st.integers(1, 9),
)
def test_bounds_hold_and_no_engine_goes_that_the_window_needed(
    loads: list[Load], least: int, more: int, replicas: int, down_s: int
) -> None:
    scaling = bounds(least, max(1, least + more), down_s)
    before = replicas
    for second, after in enumerate(played(scaling, loads, replicas)):
        assert scaling.min_replicas <= after <= scaling.max_replicas
        recent = max(load.waiting_s for load in loads[max(0, second - down_s + 1) : second + 1])
        assert after >= min(before, scaling.max_replicas, recent), (second, before, after)
        before = after
