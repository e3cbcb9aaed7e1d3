from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tartlet_control.batching.step_times import StepTimes

STEPS = st.lists(st.tuples(st.integers(0, 4096), st.floats(0, 10)), max_size=60)


def of(*steps: tuple[int, float]) -> StepTimes:
    times = StepTimes()
    for tokens, seconds in steps:
        times.add(tokens, seconds)
    return times


def test_nothing_is_known_before_the_first() -> None:
    assert of().predict(8) == of((0, 1.0)).predict(8) == of().beyond_one(8) == 0.0


def test_of_one_size_all_is_taken_for_fixed() -> None:
    times = of(*[(32, 0.04)] * 200)
    assert times.predict(1) == times.predict(64) == times.beyond_one(32) == pytest.approx(0.04)


def test_a_load_of_one_size_does_not_let_forget_the_others() -> None:
    times = of((1, 0.0125), (8, 0.013), (16, 0.022), *[(32, 0.040)] * 1000)
    assert times.predict(12) == pytest.approx((0.013 + 0.022) / 2)
    assert times.beyond_one(32) == pytest.approx(0.004)


def test_what_was_seen_of_a_size_follows_the_engine() -> None:
    times = of(*[(32, 0.040)] * 100, *[(32, 0.080)] * 30)
    assert times.predict(32) == pytest.approx(0.080, rel=0.05)


def test_a_slow_first_step_is_soon_outweighed() -> None:
    assert of((1, 1.0), *[(1, 0.01)] * 9).predict(1) == pytest.approx(0.109)


@given(STEPS, st.integers(1, 5000), st.integers(1, 5000))
def test_a_step_is_never_predicted_to_take_less_than_a_smaller_one(
    steps: list[tuple[int, float]], a: int, b: int
) -> None:
    times = of(*steps)
    a, b = sorted((a, b))
    assert 0.0 <= times.predict(a) <= times.predict(b) + 1e-9
