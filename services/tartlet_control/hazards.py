"""Which consecutive commands of one queue may share a batch (vertical batching: Pie 5.2, contract 3).

A batch reads embeds and token slots as they were before it, and the worker makes the K/V of its commands visible in
command order, layer by layer. So a later forward may read pages that an earlier one of its batch writes, but no
embed; and nothing may be written twice, or written after an earlier command read it. Ids are virtual: within one
program they name physical ones uniquely.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tartlet_control.commands import (
    COPY_KVPAGE,
    EMBED_TXT,
    FORWARD,
    GET_NEXT_DIST,
    MASK_KVPAGE,
    SAMPLE,
    Command,
    CopyKvPage,
    EmbedTxt,
    Forward,
    MaskKvPage,
    Sample,
)


def conflicts(taken: Sequence[Command], candidate: Command) -> bool:
    """Whether `candidate` must wait for the batch that holds `taken`: the same queue's, the same kind, in order."""
    return _CONFLICTS[candidate.kind](taken, candidate)


def _embed_txt(taken: Sequence[EmbedTxt], candidate: EmbedTxt) -> bool:
    new = set(candidate.embeds)
    return any(not new.isdisjoint(c.embeds) for c in taken)


def _forward(taken: Sequence[Forward], candidate: Forward) -> bool:
    reads, writes = set(candidate.iemb), set(candidate.oemb)
    pages = _written(candidate)
    for c in taken:
        if not (reads.isdisjoint(c.oemb) and writes.isdisjoint(c.oemb) and writes.isdisjoint(c.iemb)):
            return True
        if pages and _overlap(pages, _written(c)):
            return True
    return False


def _written(c: Forward) -> dict[int, tuple[int, int]]:
    """Page -> [first, end) of the token slots that `c` writes there."""
    if not c.okv:
        return {}
    size = c.queue.spec.page_size
    start, end = c.okv_offset, c.okv_offset + c.tokens
    spans = {}
    for i in range(start // size, (end - 1) // size + 1):
        spans[c.okv[i]] = (max(start - i * size, 0), min(end - i * size, size))
    return spans


def _overlap(a: dict[int, tuple[int, int]], b: dict[int, tuple[int, int]]) -> bool:
    return any(a[p][0] < b[p][1] and b[p][0] < a[p][1] for p in a.keys() & b.keys())


def _copy_kvpage(taken: Sequence[CopyKvPage], candidate: CopyKvPage) -> bool:
    return any(candidate.dst in (c.src, c.dst) or candidate.src == c.dst for c in taken)


def _mask_kvpage(taken: Sequence[MaskKvPage], candidate: MaskKvPage) -> bool:
    return any(candidate.page == c.page for c in taken)


def _get_next_dist(taken: Sequence[Command], candidate: Command) -> bool:
    return False  # reads only


def _sample(taken: Sequence[Sample], candidate: Sample) -> bool:
    return any(candidate.slot == c.slot for c in taken)


_CONFLICTS: dict[int, Callable[[Any, Any], bool]] = {
    EMBED_TXT: _embed_txt,
    FORWARD: _forward,
    COPY_KVPAGE: _copy_kvpage,
    MASK_KVPAGE: _mask_kvpage,
    GET_NEXT_DIST: _get_next_dist,
    SAMPLE: _sample,
}
