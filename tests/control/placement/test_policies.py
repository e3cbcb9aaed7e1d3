"""The placements as functions: Algorithm 2's bound, turns, room, locality against load; and when load is moved."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tartlet_common.errors.registry import InvalidArgument
from tartlet_control.placement.balance import comfortable, too_much
from tartlet_control.placement.policies import PLACEMENTS, Placement, placement_of
from tartlet_control.placement.view import EngineView, Hints, View

views = st.builds(
    EngineView,
    st.just(""),
    st.integers(0, 50),
    st.integers(0, 50),
    st.floats(0, 10),
    st.integers(0, 64),
    st.floats(0, 0.1),
    st.integers(0, 4096),
)
hints = st.builds(Hints, st.integers(0, 5000), st.integers(0, 64), st.sampled_from(["", "e0", "e2", "gone"]))


@given(st.sampled_from(sorted(PLACEMENTS)), st.lists(views, min_size=1, max_size=6), hints, st.integers(0, 100))
def test_every_placement_names_one_of_the_engines_and_the_same_one_again(
    name: str, engines: list[EngineView], hints: Hints, turn: int
) -> None:
    named = tuple(EngineView(f"e{i}", *_fields(e)) for i, e in enumerate(engines))
    view = View(named, turn)
    chosen = Placement(name).place(view, hints)
    assert chosen in {e.id for e in named}
    assert Placement(name).place(view, hints) == chosen


def _fields(e: EngineView) -> tuple[int, int, float, int, float, int]:
    return e.calls, e.programs, e.waiting_s, e.free_pages, e.token_s, e.held_tokens


def test_algorithm_2_sends_short_calls_anywhere_and_long_ones_home() -> None:
    view = View((EngineView("busy", calls=9), EngineView("free", calls=0)))
    autellix = Placement("autellix")
    assert autellix.place(view, Hints(tokens=2048, home="busy")) == "free"
    assert autellix.place(view, Hints(tokens=2049, home="busy")) == "busy"
    assert autellix.place(view, Hints(tokens=2049)) == "free", "the first long call goes where the fewest calls are"
    assert Placement("autellix", short_tokens=100).place(view, Hints(tokens=101, home="busy")) == "busy"


def test_least_used_prefers_an_engine_with_room() -> None:
    view = View((EngineView("full", calls=0, free_pages=2), EngineView("roomy", calls=5, free_pages=50)))
    assert Placement().place(view, Hints(pages=10)) == "roomy"
    assert Placement().place(view, Hints(pages=60)) == "full", "none has room: the fewest calls decide"


def test_locality_weighs_what_is_there_against_what_waits() -> None:
    def chosen(waiting_s: float) -> str:
        warm = EngineView("warm", calls=4, waiting_s=waiting_s, free_pages=99, token_s=0.001, held_tokens=1000)
        return Placement("locality").place(
            View((EngineView("cold", free_pages=99, token_s=0.001), warm)), Hints(1200, 30)
        )

    assert chosen(0.9) == "warm"
    assert chosen(1.1) == "cold", "1,000 tokens take 1 s, so to wait longer for them doesn't pay"


def test_wrong_placements_are_refused() -> None:
    for name, tokens in (("srpt", 1), ("autellix", -1)):
        with pytest.raises(InvalidArgument):
            placement_of(name, tokens)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(1, 20))
def test_balance_moves_only_from_too_many_to_room(calls: list[int], most: int) -> None:
    engines = [EngineView(f"e{i}", calls=n) for i, n in enumerate(calls)]
    for source, target in too_much(engines, {e.id: most for e in engines}).items():
        many, few = calls[int(source[1:])], calls[int(target[1:])]
        assert many > most
        assert few == min(calls) < many - 1
        assert few < most or many > 1.5 * few


def test_an_engine_that_is_slower_for_its_calls_is_full_before_its_batch_is() -> None:
    assert comfortable(32, 256, step_s=0.040, half_s=0.021) == 16
    assert comfortable(32, 256, step_s=0.022, half_s=0.020) == 256
    assert comfortable(2, 256, step_s=0.040, half_s=0.020) == 256
