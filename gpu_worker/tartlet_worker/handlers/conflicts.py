"""Cuts a Forward batch where a command depends on an earlier one in a way that one pass can't honour.

One pass reads all embeds first, stores all keys and values of a layer before it attends, and writes all output embeds
last. So a command may read *pages* that an earlier command of the batch writes. Two cases need another pass:

- A command reads or writes an embed that an earlier command of the batch writes.
- A command writes a KV slot that already holds a token, or that an earlier command of the batch writes. Earlier readers
  must still see the old token. Of a page table only an earlier command of the same table reads what a command writes:
  shared rows are never written.

One pass also pads all page lists to the longest one, and each row of a mask with them. If this would make more than
`MAX_COLUMNS` columns, long commands and short commands run in different passes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tartlet_common.engine.step import Forward
from tartlet_worker.csr import I64, counts, owners, within
from tartlet_worker.pools import Pools

MAX_COLUMNS = 1 << 22
"""The largest number of columns, with padding, of a pass over several commands. An array of them has 16 MiB."""


def cut_at_conflicts(batch: Forward, pools: Pools) -> list[tuple[int, int]]:
    """Return ranges [first, last) of commands that run one after the other; usually it is one range."""
    count = len(batch.lane)
    if count <= 1:
        return [(0, count)]
    ranges = [(0, count)]
    if _embeds_conflict(batch, pools) or _slots_conflict(batch, pools) or _tables_conflict(batch, pools):
        ranges = _cut_in_order(batch, pools)
    width = (counts(batch.ikv_indptr) + counts(batch.okv_indptr)) * pools.page_size  # [B] columns, or a few more
    if len(batch.table):
        width += _listed_slots(batch, pools)
    masked = np.where(counts(batch.mask_indptr) > 0, counts(batch.iemb_indptr), 0)  # [B] rows of masks
    if int(width.max()) * max(count, int(masked.sum())) <= MAX_COLUMNS:
        return ranges
    return [part for first, last in ranges for part in _cut_wide(width.tolist(), masked.tolist(), first, last)]


def _cut_wide(width: list[int], masked: list[int], first: int, last: int) -> list[tuple[int, int]]:
    """Cut greedily: a command starts a new range if padding to the widest command would pass `MAX_COLUMNS`."""
    ranges, widest, rows = [], 0, 0
    for b in range(first, last):
        wider, more = max(widest, width[b]), rows + masked[b]
        if b > first and wider * max(b + 1 - first, more) > MAX_COLUMNS:
            ranges.append((first, b))
            first, wider, more = b, width[b], masked[b]
        widest, rows = wider, more
    ranges.append((first, last))
    return ranges


def _embeds_conflict(batch: Forward, pools: Pools) -> bool:
    """Return whether a command reads or writes an embed that another command writes."""
    if not len(batch.oemb):
        return False
    mark, last = pools.embed_mark, len(pools.embed_mark) - 1
    # Commands with ids that don't exist fail later; here the ids only must stay inside the table.
    oemb, iemb = batch.oemb.clip(0, last), batch.iemb.clip(0, last)
    writer = owners(batch.oemb_indptr) + 1
    mark[oemb] = writer
    found = mark[iemb]
    conflict = bool((mark[oemb] != writer).any()) or bool(
        ((found > 0) & (found != owners(batch.iemb_indptr) + 1)).any()
    )
    mark[oemb] = 0
    return conflict


def _written(batch: Forward, pools: Pools) -> tuple[np.ndarray, np.ndarray]:
    """Return (command, page * page_size + slot) of every stored token; later checks fail tokens past their okv."""
    size = pools.page_size
    command, index = owners(batch.iemb_indptr), within(batch.iemb_indptr)
    target = batch.okv_offset[command].astype(np.int64) + index
    room = counts(batch.okv_indptr)[command].astype(np.int64) * size
    good = (target >= 0) & (target < room)
    command, target = command[good], target[good]
    page = batch.okv[batch.okv_indptr[:-1][command] + target // size].astype(np.int64)
    good = (page >= 0) & (page < pools.total_pages)
    return command[good], page[good] * size + target[good] % size


def _slots_conflict(batch: Forward, pools: Pools) -> bool:
    _, slots = _written(batch, pools)
    mark, number = pools.slot_mark, np.arange(len(slots))
    mark[slots] = number
    again = bool((mark[slots] != number).any())
    return again or bool((pools.position.reshape(-1)[slots] >= 0).any())


def _tables_conflict(batch: Forward, pools: Pools) -> bool:
    """Return whether a command over a table begins below the end of an earlier one over the same table."""
    if not len(batch.table):
        return False
    own = np.flatnonzero(batch.table >= 0)
    table = batch.table[own].clip(0, len(pools.tables.mark) - 1)
    if not pools.tables.repeated(table):
        return False
    return bool((_table_conflicts(batch, own) >= 0).any())


def _table_conflicts(batch: Forward, own: I64) -> I64:
    """Return [T]: for each command of `own`, the one before it over its table if that ends behind its start, or -1.

    In a range the commands over one table follow each other, so no earlier one needs a look.
    """
    table = batch.table[own]
    before = _latest_before(table, own, table, own, len(batch.lane))
    end = batch.okv_offset + counts(batch.iemb_indptr)
    return np.where(end[before] > batch.okv_offset[own], before, -1)


def _listed_slots(batch: Forward, pools: Pools) -> np.ndarray:
    """Return [B]: how many columns of a command over a table are listed, because the table isn't plain so far."""
    tables = pools.tables
    table = batch.table.clip(0, len(tables.plain) - 1)
    listed = (batch.table >= 0) & ((batch.okv_offset > tables.plain[table]) | (counts(batch.mask_indptr) > 0))
    return np.where(listed, np.minimum(batch.okv_offset, tables.count[table] * pools.page_size), 0)


def _cut_in_order(batch: Forward, pools: Pools) -> list[tuple[int, int]]:
    """Cut greedily: a command starts a new range if it conflicts with the range so far. Loops over ranges alone."""
    latest = _latest_conflict(batch, pools)
    ranges, first = [], 0
    while True:
        conflicting = np.flatnonzero(latest[first:] >= first)
        if not len(conflicting):
            ranges.append((first, len(latest)))
            return ranges
        ranges.append((first, first + int(conflicting[0])))
        first += int(conflicting[0])


def _latest_conflict(batch: Forward, pools: Pools) -> I64:
    """Return [B]: the latest earlier command that each command conflicts with, or -1."""
    count = len(batch.lane)
    latest = np.full(count, -1, np.int64)

    def note(command: I64, found: I64) -> None:
        np.maximum.at(latest, command, found)

    writer = owners(batch.oemb_indptr)
    for embeds, command in ((batch.iemb, owners(batch.iemb_indptr)), (batch.oemb, writer)):
        note(command, _latest_before(batch.oemb, writer, embeds, command, count))
    command, slots = _written(batch, pools)
    stored = _latest_before(slots, command, slots, command, count)
    note(command, stored)
    replaces = (stored >= 0) | (pools.position.reshape(-1)[slots] >= 0)  # earlier readers must see the old token
    pages = slots[replaces] // pools.page_size
    reader = owners(batch.ikv_indptr)
    note(command[replaces], _latest_before(batch.ikv, reader, pages, command[replaces], count))
    if len(batch.table):
        own = np.flatnonzero(batch.table >= 0)
        note(own, _table_conflicts(batch, own))
    return latest


def _latest_before(
    keys: npt.NDArray[Any], commands: I64, asked: npt.NDArray[Any], by: I64, count: int
) -> npt.NDArray[np.int64]:
    """Return [N]: the latest command with a key before the command that asks for the key, or -1.

    Args:
        keys: keys [M] of commands.
        commands: the commands [M] of the keys.
        asked: the keys [N] that are asked for.
        by: the commands [N] that ask.
        count: the number of commands.
    """
    entries = np.sort(keys.astype(np.int64) * count + commands)
    at = np.searchsorted(entries, asked.astype(np.int64) * count + by) - 1
    found = entries[at] if len(entries) else np.full(len(at), -1, np.int64)
    same = (at >= 0) & (found // count == asked)
    return np.where(same, found % count, -1)
