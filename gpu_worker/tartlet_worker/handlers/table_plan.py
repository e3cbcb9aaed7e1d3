"""Plans the commands of a Forward batch that use page tables, and joins plans of both kinds for one pass.

A command over a table sees the slots before its own tokens, so its columns need no list. Usually these slots are plain
(`PageTables.plain`): column c was written at position c. Then the plan names the table and nothing else of the context,
and takes the same time for any length. Otherwise the columns are listed, as for a command over page lists.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tartlet_common.engine.step import HOLE
from tartlet_worker.attention.base import AttentionBatch, TableColumns
from tartlet_worker.csr import I64, Bools, any_by, counts, owners, within
from tartlet_worker.handlers.forward_plan import Columns, unpack_mask
from tartlet_worker.models.base import ForwardPlan
from tartlet_worker.page_tables import PageTables
from tartlet_worker.pools import FAR, Pools


def plan_tables(c: Columns, pools: Pools) -> ForwardPlan:
    """Plan commands over tables that passed every check, and record in the pools and tables what they write."""
    tables, size = pools.tables, pools.page_size
    start, end = c.okv_offset.astype(np.int64), c.okv_offset + counts(c.iemb_indptr)
    command = owners(c.iemb_indptr)
    slot = start[command] + within(c.iemb_indptr)  # [T] in the table
    page, position = tables.pages(c.table[command], slot), pools.embed_position[c.iemb]
    in_order = ~any_by(position != slot, c.iemb_indptr)
    in_order[list(c.masks)] = False
    plain = _note_writes(tables, c.table, start, end, in_order)
    num_pages = (-(-end // size)).astype(np.int32)
    slot_in_page = slot % size
    pools.position[page, slot_in_page] = pools.seen_position[page, slot_in_page] = position
    row = np.cumsum(~plain) - 1
    row[plain] = -1
    pages, column_position, allowed = _listed(np.flatnonzero(~plain), c, pools, num_pages, position)
    outs = counts(c.oemb_indptr)
    return ForwardPlan(
        embed=c.iemb.astype(np.int64),
        position=position,
        page=page,
        slot=slot_in_page,
        scratch_pages=0,
        attention=AttentionBatch(
            query_indptr=c.iemb_indptr,
            query_position=position,
            pages=pages,
            num_pages=num_pages,
            column_position=column_position,
            allowed=allowed,
            tables=TableColumns(np.where(plain, c.table, -1), row, pools),
        ),
        out_token=(c.iemb_indptr[1:] - outs)[owners(c.oemb_indptr)] + within(c.oemb_indptr),
        out_embed=c.oemb.astype(np.int64),
    )


def _note_writes(tables: PageTables, table: npt.NDArray[np.int32], start: I64, end: I64, in_order: Bools) -> Bools:
    """Return [B]: whether all columns of a command are plain; record how far each table is plain afterwards."""
    if len(table) == 1 or not tables.repeated(table):
        had = tables.plain[table]
        plain = in_order & (start <= had)
        tables.plain[table] = np.minimum(np.where(plain, end, np.minimum(had, start)), tables.limit[table])
        return plain
    plain = np.zeros(len(table), np.bool_)
    for b, (t, first) in enumerate(zip(table.tolist(), start.tolist(), strict=True)):
        plain[b] = in_order[b] and first <= tables.plain[t]
        tables.plain[t] = min(end[b] if plain[b] else min(int(tables.plain[t]), first), tables.limit[t])
    return plain


def _listed(
    chosen: I64, c: Columns, pools: Pools, num_pages: npt.NDArray[np.int32], position: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], dict[int, Bools]]:
    """List the columns of commands that aren't plain, without the rows that were dropped.

    `num_pages` [B] is changed for these commands: it counts the pages that are listed.

    Returns:
        [L, N] pages, [L, N * page_size] column positions, and the masks by command, as `AttentionBatch` has them.
    """
    tables, size = pools.tables, pools.page_size
    living = [np.flatnonzero(tables.rows[c.table[b], : num_pages[b]] != HOLE) for b in chosen.tolist()]
    num_pages[chosen] = [len(rows) for rows in living]
    width = max(1, int(num_pages[chosen].max(initial=0)))
    pages = np.full((len(chosen), width), pools.zero_page, np.int32)
    seen = np.full((len(chosen), width * size), FAR, np.int32)
    allowed: dict[int, Bools] = {}
    for i, b in enumerate(chosen.tolist()):
        table, first, rows = int(c.table[b]), int(c.okv_offset[b]), living[i]
        mine = slice(int(c.iemb_indptr[b]), int(c.iemb_indptr[b + 1]))
        pages[i, : len(rows)] = tables.rows[table, rows]
        slots = (rows[:, None] * size + np.arange(size)).reshape(-1)  # of each column
        before = int(np.searchsorted(slots, first))
        seen[i, :before] = pools.seen_position[pages[i, : len(rows)]].reshape(-1)[:before]
        if table in tables.hidden:
            marks = tables.hidden[table]
            seen[i, :before][marks[slots[:before].clip(0, len(marks) - 1)] & (slots[:before] < len(marks))] = FAR
        own = before + np.arange(mine.stop - mine.start)  # no written row is dropped
        seen[i, own] = position[mine]
        if b in c.masks:
            allowed[b] = unpack_mask(c.masks[b], seen[i], own, first, slots[:before])
    return pages, seen, allowed


def join(lists: ForwardPlan, tables: ForwardPlan) -> ForwardPlan:
    """Make one plan of a plan over page lists and a plan over tables; the commands over lists come first."""
    a, b = lists.attention, tables.attention
    assert a.tables is None
    assert b.tables is not None
    first, tokens = len(a.num_pages), len(lists.embed)
    size = a.column_position.shape[1] // a.pages.shape[1]
    width = max(a.pages.shape[1], b.pages.shape[1])
    pools = b.tables.pools
    row = np.where(b.tables.row >= 0, b.tables.row + first, -1)
    masks = [*a.allowed.items(), *((command + first, mask) for command, mask in b.allowed.items())]
    return ForwardPlan(
        embed=np.concatenate([lists.embed, tables.embed]),
        position=np.concatenate([lists.position, tables.position]),
        page=np.concatenate([lists.page, tables.page]),
        slot=np.concatenate([lists.slot, tables.slot]),
        scratch_pages=lists.scratch_pages,
        attention=AttentionBatch(
            query_indptr=np.concatenate([a.query_indptr, b.query_indptr[1:] + tokens]),
            query_position=np.concatenate([a.query_position, b.query_position]),
            pages=np.concatenate([_widened(x.pages, width, pools.zero_page) for x in (a, b)]),
            num_pages=np.concatenate([a.num_pages, b.num_pages]),
            column_position=np.concatenate([_widened(x.column_position, width * size, FAR) for x in (a, b)]),
            allowed={command: _widened(mask, width * size, 0) for command, mask in masks},
            tables=TableColumns(
                np.concatenate([np.full(first, -1, np.int32), b.tables.table]),
                np.concatenate([np.arange(first), row]),
                pools,
            ),
        ),
        out_token=np.concatenate([lists.out_token, tables.out_token + tokens]),
        out_embed=np.concatenate([lists.out_embed, tables.out_embed]),
    )


def _widened(values: Any, width: int, fill: int | np.int32) -> Any:
    """Return [n, width]: the columns of `values`, then columns of `fill`."""
    missing = width - values.shape[1]
    return np.pad(values, ((0, 0), (0, missing)), constant_values=fill) if missing else values
