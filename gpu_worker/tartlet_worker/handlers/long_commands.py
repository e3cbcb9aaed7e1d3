"""Splits one long command into several passes, so that the memory of a pass does not grow with the command.

A query sees columns up to its own position. So the tokens, in order of position, can go through all layers one range
after the other: the columns that a range sees are stored by then, and it does not see later columns. Tokens of one
position see each other and stay in one range. Two kinds of commands are not split: a command with a mask, because the
mask may show a token later columns (docs/limits.md bounds masks), and a command that stores nothing, because each pass
clears the scratch pages (which bound it).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from tartlet_worker.csr import I64
from tartlet_worker.models.base import Decoder, ForwardPlan
from tartlet_worker.pools import Pools


def ranges(position: npt.NDArray[np.int32], limit: int) -> list[tuple[int, int]]:
    """Cut ascending positions [T] into ranges of at most `limit` that keep equal ones together.

    Raises:
        ValueError: more than `limit` are equal.
    """
    cuts, first = [], 0
    while len(position) - first > limit:
        last = int(np.searchsorted(position, position[first + limit], side="left"))
        if last <= first:
            raise ValueError(f"more than {limit} tokens of position {position[first]}")
        cuts.append((first, last))
        first = last
    return [*cuts, (first, len(position))]


def most_of_one_position(position: npt.NDArray[np.int32]) -> int:
    """How many of the positions [T] are equal at most."""
    return int(np.unique(position, return_counts=True)[1].max())


def split_long_command(plan: ForwardPlan, pools: Pools, limit: int, decoder: Decoder) -> Iterator[ForwardPlan]:
    """Yield the plan, or plans of at most `limit` tokens that together do the same.

    The caller has `decoder` run each plan before it takes the next.
    """
    batch = plan.attention
    if len(plan.embed) <= limit or len(batch.num_pages) > 1 or batch.allowed or plan.scratch_pages:
        yield plan
        return
    order = np.argsort(plan.position, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    out_place = place[plan.out_token]  # [O] where the tokens stand whose output is kept
    by_place = np.argsort(out_place, kind="stable")  # decoders want outputs in the order of their tokens
    cuts = ranges(plan.position[order], limit)
    held: list[tuple[I64, torch.Tensor]] = []
    for first, last in cuts:
        tokens = order[first:last]
        outs = by_place[(out_place[by_place] >= first) & (out_place[by_place] < last)]
        written = plan.out_embed[outs]
        early = np.intersect1d(written, plan.embed[order[last:]])  # a later part must still read what they hold now
        if len(early):
            decoder.finish(pools)  # it may have put off the embed_txt, or the forward, that writes these embeds
        before = _rows(pools, early)
        yield replace(
            plan,
            embed=plan.embed[tokens],
            position=plan.position[tokens],
            page=plan.page[tokens],
            slot=plan.slot[tokens],
            attention=replace(
                batch,
                query_indptr=np.array([0, len(tokens)], np.int64),
                query_position=batch.query_position[tokens],
            ),
            out_token=out_place[outs] - first,
            out_embed=written,
            adapter=plan.adapter[tokens] if len(plan.adapter) else plan.adapter,
        )
        if len(early):
            decoder.finish(pools)
            held.append((early, _rows(pools, early)))
            pools.embeds.index_copy_(0, pools.index(early), before)
    if held:
        decoder.finish(pools)  # a last part of one token still reads what the embeds held before
    for embeds, rows in held:
        pools.embeds.index_copy_(0, pools.index(embeds), rows)


def _rows(pools: Pools, embeds: I64) -> torch.Tensor:
    return pools.embeds.index_select(0, pools.index(embeds))
