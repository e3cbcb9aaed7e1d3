"""Frames that can't be delivered: a link doesn't send them for ever, and goes on behind them where it can."""

from __future__ import annotations

from typing import Any

import pytest

from tartlet_common.errors.registry import FrameTooLarge, TartletError, Undelivered
from tartlet_common.rpc import resume
from tartlet_common.rpc.resume import ResumableLink
from tartlet_common.rpc.sizes import MAX_FRAME_BYTES
from tests.common.rpc.test_resume import Frame, emptied, new_link


def break_at_first_frame(link: ResumableLink[Any], times: int) -> list[Any]:
    """Connect several times; each connection breaks while its first frame is under way."""
    return [link.connect(link.acknowledged).take() for _ in range(times)]


def test_a_frame_that_breaks_every_connection_is_replaced_and_those_behind_it_are_sent() -> None:
    errors: list[TartletError] = []

    def replace(frame: Any, error: TartletError) -> Any:
        errors.append(error)
        return Frame(state=f"instead of {frame.state}")

    link = new_link(replace=replace)
    link.send(Frame(state="poison" * 100))
    link.send(Frame(state="next"))
    assert {frame.state for frame in break_at_first_frame(link, resume.ATTEMPTS)} == {"poison" * 100}
    assert errors == []
    connection = link.connect(0)
    assert [type(error) for error in errors] == [Undelivered]
    assert errors[0].fields["attempts"] == resume.ATTEMPTS
    sent = [frame for _ in range(2) if (frame := connection.take()) is not None]
    assert [(f.number, f.state[:10]) for f in sent] == [(1, "instead of"), (2, "next")]
    link.received(Frame(applied=2))
    assert link.size == 0


@pytest.mark.parametrize("replace", [None, emptied])
def test_a_link_whose_frame_can_not_be_replaced_is_given_up(replace: Any) -> None:
    link = new_link(replace=replace)
    link.send(Frame(state="poison"))
    break_at_first_frame(link, resume.ATTEMPTS * (1 if replace is None else 2))
    with pytest.raises(Undelivered):
        link.connect(0)
    assert link.lost
    assert not link.can_resume(0)
    assert link.size == 0


def test_progress_of_the_other_end_starts_the_count_anew() -> None:
    link = new_link()
    for _ in range(5):
        link.send(Frame(state="frame"))
    for applied in range(5):
        for _ in range(resume.ATTEMPTS - 1):
            assert link.connect(applied).take() is not None
    assert not link.lost


@pytest.mark.parametrize("earlier", range(3))
def test_a_frame_that_no_message_carries_is_never_kept(earlier: int) -> None:
    large = Frame(state="x" * (MAX_FRAME_BYTES + 1))
    link, replacing = new_link(limit=1 << 30), new_link(limit=1 << 30, replace=emptied)
    for _ in range(earlier):
        link.send(Frame())
        replacing.send(Frame())
    with pytest.raises(FrameTooLarge):
        link.send(large)
    assert link.last == earlier
    replacing.send(large)
    assert replacing.last == earlier + 1
    assert replacing.size < 1000
