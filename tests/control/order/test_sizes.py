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


def test_a_flood_of_kinds_of_programs_leaves_those_of_other_tenants() -> None:
    history = History(most_keys=64)
    history.ended(("calm", "agent", "d"), 1.0)
    for n in range(1000):
        history.ended(("flood", f"kind {n}", "d"), 1.0)
        history.ended(("noise", f"kind {n % 8}", "d"), 1.0)
    assert history.known(("calm", "agent", "d")) is not None
    assert len([key for key in history.keys if key[0] == "noise"]) == 8
    for n in range(100):  # as many tenants as have room, and more
        history.ended((f"tenant {n}", "agent", "d"), 1.0)
        assert history.known((f"tenant {n}", "agent", "d")) is not None
    assert len(list(history.keys)) == 64


def test_what_a_kind_of_program_teaches_concerns_its_programs_and_no_others() -> None:
    history = History()
    history.ended(KEY, 1.0)
    other = ("tenant", "other", "digest")
    version = history.version
    history.ended(other, 1.0)
    assert history.changed_since(version) == {other}
    assert history.changed_since(history.version) == set()
    assert None in (history.changed_since(0) or ()), "with the first run, all programs ceased to go as in plas"
    for n in range(1000):
        history.ended(("tenant", f"kind {n}", "digest"), 1.0)
    assert history.changed_since(version) is None, "too many to tell"


def test_old_runs_fade() -> None:
    history = History()
    for service, runs in ((1.0, 2000), (64.0, 2000)):
        for _ in range(runs):
            history.ended(KEY, service)
    assert history.index(KEY, 60.0) > history.index(KEY, 0.0), "what ran lately counts most"
