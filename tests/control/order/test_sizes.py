"""The Gittins index of remaining service, and what past runs teach."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tartlet_control.order.sizes import BUCKETS, EDGES, History, gittins

KEY = ("tenant", "agent", "digest")


def middles() -> np.ndarray:
    return np.where(EDGES[:-1] > 0, np.sqrt(EDGES[:-1] * EDGES[1:]), EDGES[1:] / 2)


@given(st.lists(st.integers(0, 9), min_size=BUCKETS, max_size=BUCKETS), st.integers(0, BUCKETS - 1))
def test_the_index_is_the_best_rate_of_ending(counts: list[int], bucket: int) -> None:
    masses = np.array(counts, float) + 0.1
    age = EDGES[bucket]
    left = [(size - age, mass) for size, mass in zip(middles(), masses, strict=True)][bucket:]
    rates = [
        sum(mass for rest, mass in left if rest <= stop) / sum(mass * min(rest, stop) for rest, mass in left)
        for stop, _ in left
    ]
    assert gittins(masses)[bucket] == pytest.approx(max(rates))


def test_with_no_run_known_less_service_goes_first() -> None:
    history = History()
    index = [history.index(KEY, service) for service in (0.0, 0.01, 0.1, 1.0, 10.0, 100.0)]
    assert index == sorted(index, reverse=True)
    assert len(set(index)) == len(index)


def test_a_program_of_known_size_goes_first_as_it_nears_its_end() -> None:
    history = History()
    for _ in range(50):
        history.ended(KEY, 10.0)
        history.ended(("tenant", "short", "digest"), 0.5)
    assert history.index(KEY, 9.0) > history.index(KEY, 5.0) > history.index(KEY, 2.0)
    assert history.index(KEY, 9.9) > history.index(("tenant", "new", "digest"), 9.9)
    assert history.index(("tenant", "short", "digest"), 0.0) > history.index(KEY, 0.0)


def test_history_is_bounded_and_forgets_the_kind_that_ended_longest_ago() -> None:
    history = History(most_keys=2)
    for name in ("a", "b", "a", "c"):
        for _ in range(20):
            history.ended(("", name, ""), 1.0)
    unknown = history.index(("", "z", ""), 0.0)
    assert history.index(("", "b", ""), 0.0) == unknown
    assert history.index(("", "a", ""), 0.0) != unknown


def test_old_runs_fade() -> None:
    history = History()
    for service, runs in ((1.0, 2000), (64.0, 2000)):
        for _ in range(runs):
            history.ended(KEY, service)
    assert history.index(KEY, 60.0) > history.index(KEY, 0.0), "what ran lately counts most"
