"""Plans a Forward batch for the decoder: where its tokens are written, and which columns each token sees.

Everything here is numpy on the host, on whole batches. No function touches the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tartlet_common.engine.step import Forward
from tartlet_worker.attention.base import AttentionBatch
from tartlet_worker.csr import I64, counts, indptr_of, owners, take, within
from tartlet_worker.models.base import ForwardPlan
from tartlet_worker.pools import FAR, Pools


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of the chosen commands of a batch."""

    iemb: npt.NDArray[np.int32]
    iemb_indptr: I64
    ikv: npt.NDArray[np.int32]
    ikv_indptr: I64
    okv: npt.NDArray[np.int32]
    okv_indptr: I64
    okv_offset: npt.NDArray[np.int32]
    oemb: npt.NDArray[np.int32]
    oemb_indptr: I64
    masks: dict[int, npt.NDArray[np.uint8]]  # packed bits of the commands that brought a mask
    table: npt.NDArray[np.int32]  # numbers of page tables; empty where the batch has none


def columns(batch: Forward, chosen: I64) -> Columns:
    """Cut a batch to the chosen commands."""
    masked = np.flatnonzero(counts(batch.mask_indptr)[chosen]) if len(batch.mask_bits) else ()
    masks = {int(i): batch.mask_bits[batch.mask_indptr[chosen[i]] : batch.mask_indptr[chosen[i] + 1]] for i in masked}
    if len(chosen) == len(batch.lane):
        parts = [
            (values, indptr.astype(np.int64))
            for values, indptr in (
                (batch.iemb, batch.iemb_indptr),
                (batch.ikv, batch.ikv_indptr),
                (batch.okv, batch.okv_indptr),
                (batch.oemb, batch.oemb_indptr),
            )
        ]
        offset = batch.okv_offset
    else:
        parts = []
        for values, indptr in (
            (batch.iemb, batch.iemb_indptr),
            (batch.ikv, batch.ikv_indptr),
            (batch.okv, batch.okv_indptr),
            (batch.oemb, batch.oemb_indptr),
        ):
            index, cut = take(indptr, chosen)
            parts.append((values[index], cut))
        offset = batch.okv_offset[chosen]
    (iemb, iemb_indptr), (ikv, ikv_indptr), (okv, okv_indptr), (oemb, oemb_indptr) = parts
    table = batch.table[chosen] if len(batch.table) else batch.table
    return Columns(iemb, iemb_indptr, ikv, ikv_indptr, okv, okv_indptr, offset, oemb, oemb_indptr, masks, table)


@dataclass(frozen=True, slots=True)
class Writes:
    """The pages that the commands write, W in all, and the place of each token."""

    command: I64  # [W]
    page: I64  # [W]
    indptr: I64  # [B + 1]
    token_write: I64  # [T] index into the W pages
    slot: I64  # [T]
    stored: npt.NDArray[np.bool_]  # [B] into okv pages rather than scratch pages
    scratch_pages: int


def plan_writes(c: Columns, pools: Pools) -> Writes:
    """Find a place for every token: slot `okv_offset + i` of its okv pages, or scratch pages without okv pages."""
    size, tokens = pools.page_size, counts(c.iemb_indptr)
    stored = counts(c.okv_indptr) > 0
    first_token = np.where(stored, c.okv_offset, 0).astype(np.int64)  # [B] slot of token 0 in the written list
    first_page = first_token // size
    num = np.where(tokens > 0, (first_token + tokens - 1) // size - first_page + 1, 0)  # [B] pages written
    indptr = indptr_of(num)
    command, rank = owners(indptr), within(indptr)
    page = np.empty(len(command), np.int64)
    mine = stored[command]
    page[mine] = c.okv[(c.okv_indptr[:-1] + first_page)[command[mine]] + rank[mine]]
    scratch = int(len(mine) - mine.sum())
    page[~mine] = pools.scratch_page + np.arange(scratch)
    token_command = owners(c.iemb_indptr)
    target = first_token[token_command] + within(c.iemb_indptr)
    token_write = indptr[token_command] + target // size - first_page[token_command]
    return Writes(command, page, indptr, token_write, target % size, stored, scratch)


def plan_forward(c: Columns, pools: Pools) -> ForwardPlan:
    """Plan commands that passed every check, and record in the pools what they write.

    A command sees what earlier commands of the batch write (`shared` below), because the decoder stores all keys and
    values of a layer before it attends. Then the positions are recorded command by command.
    """
    size, count = pools.page_size, len(c.iemb_indptr) - 1
    writes = plan_writes(c, pools)
    position = pools.embed_position[c.iemb]
    ikv_count = counts(c.ikv_indptr)
    ikv_command, ikv_rank = owners(c.ikv_indptr), within(c.ikv_indptr)
    write_column, hits, shared = _find_columns(c.ikv, ikv_command, ikv_rank, ikv_count, writes, pools)
    appended = write_column >= ikv_count[writes.command]
    num_pages = ikv_count + np.bincount(writes.command[appended], minlength=count)

    table = np.full((count, max(1, int(num_pages.max(initial=0)))), pools.zero_page, np.int32)
    table[ikv_command, ikv_rank] = c.ikv
    token_command = writes.command[writes.token_write]
    own = write_column[writes.token_write] * size + writes.slot  # [T] column of each token
    seen = _ColumnPositions(pools, writes, c.ikv, hits, position, token_command, own)
    column_position = seen.in_order(table, c.iemb_indptr, c.ikv_indptr) if shared else seen.at_once(table)
    table[writes.command[appended], write_column[appended]] = writes.page[appended]

    allowed = {
        b: unpack_mask(bits, column_position[b], own[c.iemb_indptr[b] : c.iemb_indptr[b + 1]], int(ikv_count[b]) * size)
        for b, bits in c.masks.items()
    }
    outs = counts(c.oemb_indptr)
    out_command = owners(c.oemb_indptr)
    out_token = (c.iemb_indptr[1:] - outs)[out_command] + within(c.oemb_indptr)
    return ForwardPlan(
        embed=c.iemb.astype(np.int64),
        position=position,
        page=writes.page[writes.token_write],
        slot=writes.slot,
        scratch_pages=writes.scratch_pages,
        attention=AttentionBatch(
            query_indptr=c.iemb_indptr,
            query_position=position,
            pages=table,
            num_pages=num_pages.astype(np.int32),
            column_position=column_position,
            allowed=allowed,
        ),
        out_token=out_token,
        out_embed=c.oemb.astype(np.int64),
    )


def _find_columns(
    ikv: npt.NDArray[np.int32], ikv_command: I64, ikv_rank: I64, ikv_count: I64, writes: Writes, pools: Pools
) -> tuple[I64, I64, bool]:
    """Find the place of each written page in its command's page list.

    Returns:
        [W] the index of each written page in its command's list: its first place in ikv, or a place after ikv; the
        entries of ikv that any command writes; whether commands of the batch share written pages.
    """
    mark, number = pools.page_mark, np.arange(1, len(writes.page) + 1)
    mark[writes.page] = number
    hits = np.flatnonzero(mark[ikv])
    several_writers = bool((mark[writes.page] != number).any())
    mark[writes.page] = 0
    after = np.arange(len(writes.page))
    if not len(hits):
        return ikv_count[writes.command] + after - writes.indptr[writes.command], hits, False
    total = pools.total_pages
    hit_keys, first = np.unique(ikv_command[hits] * total + ikv[hits], return_index=True)
    keys = writes.command * total + writes.page
    at = np.minimum(np.searchsorted(hit_keys, keys), len(hit_keys) - 1)
    inside = hit_keys[at] == keys
    column = np.where(inside, ikv_rank[hits[first[at]]], -1)
    outside_before = np.cumsum(~inside) - ~inside  # written pages outside ikv before this one, over the batch
    base = indptr_of((~inside).astype(np.int64))[writes.indptr[:-1]]
    column = np.where(inside, column, ikv_count[writes.command] + outside_before - base[writes.command])
    # Every hit is its own command's page unless a page that one command writes is in another's list.
    shared = several_writers or int(inside.sum()) != len(hit_keys)
    return column, hits, shared


class _ColumnPositions:
    """Fills in the positions of columns, and records in the pools what the batch writes."""

    def __init__(
        self,
        pools: Pools,
        writes: Writes,
        ikv: npt.NDArray[np.int32],
        hits: I64,
        position: npt.NDArray[np.int32],
        token_command: I64,
        own: I64,
    ) -> None:
        self._pools, self._writes, self._ikv, self._hits = pools, writes, ikv, hits
        self._position, self._token_command, self._own = position, token_command, own

    def at_once(self, table: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return [B, N * page_size] in one gather, for commands that don't read what others of the batch write."""
        stored = self._writes.stored[self._token_command]
        page, slot = self._writes.page[self._writes.token_write], self._writes.slot
        if stored.all():
            self._hide(page, slot)
        else:
            self._hide(page[stored], slot[stored])
        seen = self._pools.seen_position[table].reshape(len(table), -1)
        seen[self._token_command, self._own] = self._position
        if stored.all():
            self._record(page, slot, self._position)
        else:
            self._record(page[stored], slot[stored], self._position[stored])
        return seen

    def in_order(self, table: npt.NDArray[np.int32], token_indptr: I64, ikv_indptr: I64) -> npt.NDArray[np.int32]:
        """Return [B, N * page_size] command by command: each sees what earlier commands wrote, and nothing later."""
        seen = np.empty((len(table), table.shape[1] * self._pools.page_size), np.int32)
        for b in range(len(table)):
            mine = slice(int(token_indptr[b]), int(token_indptr[b + 1]))
            page, slot = self._writes.page[self._writes.token_write[mine]], self._writes.slot[mine]
            if self._writes.stored[b]:
                self._hide(page, slot)
            seen[b] = self._pools.seen_position[table[b]].reshape(-1)
            seen[b, self._own[mine]] = self._position[mine]
            if self._writes.stored[b]:
                self._record(page, slot, self._position[mine])
        return seen

    def _hide(self, page: I64, slot: I64) -> None:
        """Hide slots that a command writes from its ikv, because they count once, as the command's own tokens."""
        self._pools.seen_position[page, slot] = FAR

    def _record(self, page: I64, slot: I64, position: npt.NDArray[np.int32]) -> None:
        self._pools.position[page, slot] = position
        self._pools.seen_position[page, slot] = np.where(self._pools.hidden[page, slot], FAR, position)


def unpack_mask(
    bits: npt.NDArray[np.uint8],
    column_position: npt.NDArray[np.int32],
    own: I64,
    ikv_columns: int,
    listed: I64 | None = None,
) -> npt.NDArray[np.bool_]:
    """Move a mask [tokens, ikv columns + tokens] to the columns [tokens, N * page_size] of the command's page list.

    `listed` names the columns of the mask that the page list begins with; None for all of them.
    """
    tokens = len(own)
    width = ikv_columns + tokens
    given = np.unpackbits(bits, count=tokens * width, bitorder="little").reshape(tokens, width).astype(np.bool_)
    allowed = np.zeros((tokens, len(column_position)), np.bool_)
    if listed is None:
        allowed[:, :ikv_columns] = given[:, :ikv_columns]
    else:
        allowed[:, : len(listed)] = given[:, listed]
    allowed[:, own] = given[:, ikv_columns:]
    return np.asarray(allowed & (column_position < FAR))


def mask_bytes(c_iemb: I64, before: I64) -> I64:
    """Return [B]: the bytes of a mask for commands with so many tokens and columns before them."""
    return np.asarray((c_iemb * (before + c_iemb) + 7) // 8)
