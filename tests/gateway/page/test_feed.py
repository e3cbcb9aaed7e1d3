"""What a page has been told equals the state, whenever and however rarely the page is told."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tartlet.watching import StateChange
from tartlet_gateway.live.feed import Feed

NAMES = st.sampled_from("abcdef")
STEP = st.tuples(
    st.sampled_from(["change", "change", "change", "take", "lost"]),
    st.booleans(),
    st.sets(NAMES),
    st.sets(NAMES),
    st.integers(0, 9),
)


class Page:
    """The page's side, as `live.js` does it."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, Any]] = {}
        self.connected = False

    def apply(self, told: dict[str, Any]) -> None:
        if told["whole"]:
            self.known.clear()
        self.known |= {p["id"]: p for p in told["programs"]}
        for name in told["programs_gone"]:
            self.known.pop(name, None)
        self.connected = told["connected"]


@given(st.lists(STEP, max_size=40), st.integers(0, 20))
def test_two_pages_that_are_told_at_different_times_know_the_same_in_the_end(steps: list[Any], joins: int) -> None:
    feed, pages = Feed(), [Page(), Page()]
    views = [feed.open()]
    assert [v.pending for v in views] == [False], "nothing is known yet, not even whether control is there"
    for at, (what, whole, changed, gone, value) in enumerate(steps):
        if at == joins:
            views.append(feed.open())
        if what == "change":
            programs = [{"id": name, "value": value} for name in sorted(changed)]
            feed.apply(StateChange(whole, [], programs, {"programs": value}, [], sorted(gone - changed)))
        elif what == "lost":
            feed.lost()
        elif views[0].pending:
            pages[0].apply(views[0].take())
    for page, view in zip(pages, views, strict=False):
        if view.pending:
            page.apply(view.take())
        assert (page.known, page.connected) == (feed.programs, feed.connected)
        assert not view.pending
        feed.close(view)
    assert not feed.watched
