"""Runs `copy_kvpage`, `mask_kvpage` and `mask_table` batches, which need no model."""

from __future__ import annotations

import numpy as np

from tartlet_common.engine.step import BatchResult, CopyKvPage, Kind, MaskKvPage, MaskTable
from tartlet_common.errors.registry import InvalidArgument
from tartlet_worker.handlers.registration import Resources, handles
from tartlet_worker.handlers.statuses import BatchStatuses, one_each


@handles(Kind.COPY_KVPAGE)
def copy_kvpage(batch: CopyKvPage, on: Resources) -> tuple[BatchResult, int]:
    """Copy runs of tokens between pages: keys, values, positions and mask bits.

    The copies of a batch take effect in order, so a copy may read what an earlier copy wrote.
    """
    pools = on.pools
    statuses = BatchStatuses(batch.lane, on.poisoned)
    one, size = one_each(len(batch.lane)), pools.page_size
    statuses.check_ids("page", batch.src, one, pools.sizes.num_pages)
    statuses.check_ids("page", batch.dst, one, pools.sizes.num_pages)
    first = np.minimum(batch.src_offset, batch.dst_offset)
    last = np.maximum(batch.src_offset, batch.dst_offset).astype(np.int64) + batch.size
    statuses.fail(
        np.asarray((first < 0) | (batch.size < 0) | (last > size)),
        lambda b: InvalidArgument(argument="size", detail=f"the copied tokens don't fit a page of {size}"),
    )
    for b in statuses.settle().tolist():
        src, dst, count = int(batch.src[b]), int(batch.dst[b]), int(batch.size[b])
        a, z = int(batch.src_offset[b]), int(batch.dst_offset[b])
        values = pools.kv[:, :, src, :, a : a + count]
        # A page may be copied onto itself with an overlap.
        pools.kv[:, :, dst, :, z : z + count] = values.clone() if src == dst else values
        for marks in (pools.position, pools.hidden, pools.seen_position):
            marks[dst, z : z + count] = marks[src, a : a + count].copy()
    return statuses.result(), 0


@handles(Kind.MASK_KVPAGE)
def mask_kvpage(batch: MaskKvPage, on: Resources) -> tuple[BatchResult, int]:
    """Set the mask bits of pages. The commands of a batch apply in order, so the last one of a page stays."""
    pools = on.pools
    statuses = BatchStatuses(batch.lane, on.poisoned)
    statuses.check_ids("page", batch.page, one_each(len(batch.lane)), pools.sizes.num_pages)
    runs = statuses.settle()
    pages, shifts = batch.page[runs], np.arange(pools.page_size, dtype=np.uint32)
    pools.hidden[pages] = (batch.bits[runs, None] >> shifts) & 1
    pools.refresh(pages)
    return statuses.result(), 0


@handles(Kind.MASK_TABLE)
def mask_table(batch: MaskTable, on: Resources) -> tuple[BatchResult, int]:
    """Hide or show slots of page tables. The commands of a batch apply in order."""
    tables, size = on.pools.tables, on.pools.page_size
    statuses = BatchStatuses(batch.lane, on.poisoned)
    known = (batch.table >= 0) & (batch.table < len(tables.count))
    room = np.where(known, tables.count[np.where(known, batch.table, 0)], 0).astype(np.int64) * size
    end = batch.first.astype(np.int64) + batch.count

    def error(b: int) -> InvalidArgument:
        detail = f"{batch.first[b]} to {end[b] - 1} of a table with {room[b]} slots"
        return InvalidArgument(argument="slots", detail=detail)

    statuses.fail((batch.first < 0) | (batch.count < 0) | (end > room), error)
    for b in statuses.settle().tolist():
        hide = bool(batch.hidden[b])
        tables.mask(int(batch.table[b]), int(batch.first[b]), int(batch.count[b]), hide=hide)
    return statuses.result(), 0
