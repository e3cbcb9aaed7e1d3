"""Which two commands of one queue may share a batch, by what each reads and writes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tartlet_common.abi import Record
from tartlet_control.calls.embed import EmbedTxt
from tartlet_control.calls.forward import Forward
from tartlet_control.calls.kv import CopyKvPage, MaskKvPage
from tartlet_control.calls.output import GetNextDist, Sample
from tartlet_control.calls.registry import BY_KIND
from tartlet_control.tables.programs import Command, CommandQueue

QUEUE = cast("CommandQueue", SimpleNamespace(spec=SimpleNamespace(page_size=4)))


def record(a: int = 0, b: int = 0, c: int = 0) -> Record:
    return Record(0, 0, 1, 0, a, b, c, 0, 0)


def embed(*embeds: int, slots: tuple[int, ...] | None = None) -> EmbedTxt:
    count = len(embeds)
    words = [*embeds, *(slots or [7] * count), *range(count)]
    return EmbedTxt(QUEUE, record(b=int(slots is not None)), 0.0, words)


def forward(**given: Any) -> Forward:
    ikv, iemb, okv, oemb = (list(given.get(name, ())) for name in ("ikv", "iemb", "okv", "oemb"))
    return Forward(QUEUE, record(given.get("at", 0)), 0.0, (ikv, iemb, okv, oemb), b"")


def copy(src: int, dst: int) -> CopyKvPage:
    return CopyKvPage(QUEUE, record(c=1), 0.0, src, dst)


def mask(page: int) -> MaskKvPage:
    return MaskKvPage(QUEUE, record(page, 1), 0.0)


def dist(*embeds: int) -> GetNextDist:
    return GetNextDist(QUEUE, record(), 0.0, list(embeds), 5)


def sample(embed: int, slot: int) -> Sample:
    return Sample(QUEUE, record(embed, slot), 0.0, b"", b"")


WAITS: dict[str, tuple[Command, Command]] = {
    "embed, write after write": (embed(1, 2), embed(3, 2)),
    "forward, read after write of an embed": (forward(iemb=[1], oemb=[2]), forward(iemb=[2], oemb=[3])),
    "forward, write after read of an embed": (forward(iemb=[1], oemb=[2]), forward(iemb=[3], oemb=[1])),
    "forward, write after write of an embed": (forward(iemb=[1], oemb=[2]), forward(iemb=[3], oemb=[2])),
    "forward, write after write of a slot": (forward(iemb=[1], okv=[5], at=2), forward(iemb=[2], okv=[5], at=2)),
    "forward, write after write over a page's end": (
        forward(iemb=[1, 2, 3], okv=[5, 6], at=2),
        forward(iemb=[4], okv=[6]),
    ),
    "copy, read after write": (copy(1, 2), copy(2, 3)),
    "copy, write after read": (copy(1, 2), copy(3, 1)),
    "copy, write after write": (copy(1, 2), copy(3, 2)),
    "mask, write after write": (mask(1), mask(1)),
    "sample, write after write": (sample(1, 4), sample(2, 4)),
}
SHARES: dict[str, tuple[Command, Command]] = {
    "embed, others": (embed(1, 2), embed(3, 4)),
    "embed, read after read of a slot": (embed(1, slots=(9,)), embed(2, slots=(9,))),
    "forward, others": (forward(iemb=[1], okv=[5], oemb=[2]), forward(iemb=[3], okv=[6], oemb=[4])),
    "forward, read after read of an embed": (forward(iemb=[1], oemb=[2]), forward(iemb=[1], oemb=[3])),
    "forward, read after write of a page": (forward(iemb=[1], okv=[5]), forward(ikv=[5], iemb=[2])),
    "forward, write after read of a page": (forward(ikv=[5], iemb=[1]), forward(iemb=[2], okv=[5])),
    "forward, next slot of a page": (forward(iemb=[1, 2], okv=[5]), forward(iemb=[3], okv=[5], at=2)),
    "forward, next slot over a page's end": (
        forward(iemb=[1, 2, 3], okv=[5, 6], at=2),
        forward(iemb=[4], okv=[6], at=1),
    ),
    "copy, others": (copy(1, 2), copy(3, 4)),
    "copy, read after read": (copy(1, 2), copy(1, 3)),
    "mask, others": (mask(1), mask(2)),
    "distribution, read after read": (dist(1, 2), dist(2, 3)),
    "sample, others": (sample(1, 4), sample(2, 5)),
    "sample, read after read": (sample(1, 4), sample(1, 5)),
}


@pytest.mark.parametrize(
    ("pair", "waits"), [*((p, True) for p in WAITS.values()), *((p, False) for p in SHARES.values())],
    ids=[*WAITS, *SHARES],
)  # fmt: skip
@pytest.mark.parametrize("between", [False, True], ids=["next", "later"])
def test_a_command_waits_for_a_batch_only_where_it_would_not_be_as_if_after_it(
    pair: tuple[Command, Command], *, waits: bool, between: bool
) -> None:
    first, second = pair
    taken = BY_KIND[first.kind].conflicts()
    assert not taken.conflicts(second), "an empty batch holds nobody back"
    taken.add(first)
    if between:  # with nothing in common with either
        others: list[Command] = [
            embed(90), forward(iemb=[91], okv=[92], oemb=[93]), copy(94, 95), mask(96), dist(97), sample(98, 99),
        ]  # fmt: skip
        (other,) = (o for o in others if o.kind == first.kind)
        assert not taken.conflicts(other)
        taken.add(other)
    assert taken.conflicts(second) == waits


def test_all_slots_that_a_batch_writes_in_a_page_are_held() -> None:
    taken = BY_KIND[Forward.kind].conflicts()
    for at in (0, 1):
        taken.add(forward(iemb=[at], okv=[5], at=at))
    assert [taken.conflicts(forward(iemb=[9], okv=[5], at=at)) for at in range(4)] == [True, True, False, False]
