"""Tells whether a pass is plain decode, which a graph can serve, and what its rows are. Pure numpy on the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tartlet_worker.csr import I64
from tartlet_worker.models.base import ForwardPlan
from tartlet_worker.pools import Pools

I32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """N commands of one token each; row i sees the columns 0 to position[i], column c at position c."""

    embed: I64  # [N] source embeds
    position: I32  # [N]
    page: I64  # [N] page that takes the key and the value
    slot: I64  # [N] and the slot in it
    out_embed: I64  # [N] embed that takes the last hidden state; the spare one where none is asked for
    num_pages: I32  # [N] pages up to the position
    table: I32 | None  # [N] numbers of page tables; None: `pages` lists them
    pages: I32  # [N, width], [0, 0] with tables


def decode_rows(plan: ForwardPlan, pools: Pools) -> DecodeRows | None:
    """Return the rows of a pass, or None if a command of it isn't plain decode.

    Over a table this costs the same at any length; over a page list it costs the columns.
    """
    batch, count = plan.attention, len(plan.embed)
    if count != len(batch.num_pages) or plan.scratch_pages or batch.allowed or not count:
        return None
    if (np.diff(batch.query_indptr) != 1).any():
        return None
    position = plan.position
    out_embed = np.full(count, pools.spare_embed, np.int64)
    out_embed[plan.out_token] = plan.out_embed
    num_pages = (position // pools.page_size + 1).astype(np.int32)
    tables = np.full(count, -1, np.int32) if batch.tables is None else batch.tables.table
    if (tables >= 0).all():
        listed, table = np.zeros((0, 0), np.int32), tables
    else:
        found = _listed(plan, tables, num_pages, pools)
        if found is None:
            return None
        listed, table = found, None
    return DecodeRows(plan.embed, position, plan.page, plan.slot, out_embed, num_pages, table, listed)


def _listed(plan: ForwardPlan, tables: I32, num_pages: I32, pools: Pools) -> I32 | None:
    """Return the pages [N, width] of rows of both kinds, or None if a listed column isn't at its own position."""
    batch = plan.attention
    rows = np.flatnonzero(tables < 0)
    lines = rows if batch.tables is None else batch.tables.row[rows]
    seen = batch.column_position[lines]
    column, at = np.arange(seen.shape[1]), plan.position[rows, None]
    if (plan.position[rows] >= batch.num_pages[rows] * pools.page_size).any():
        return None
    if not np.where(column <= at, seen == column, seen > at).all():
        return None
    listed = np.full((len(tables), int(num_pages.max())), pools.zero_page, np.int32)
    width = min(listed.shape[1], batch.pages.shape[1])
    listed[rows, :width] = batch.pages[lines, :width]
    for b in np.flatnonzero(tables >= 0).tolist():
        listed[b, : num_pages[b]] = pools.tables.rows[tables[b], : num_pages[b]]
    return listed
