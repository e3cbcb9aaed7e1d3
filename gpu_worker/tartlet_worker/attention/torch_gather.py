"""Attention by gathering pages and calling torch's `scaled_dot_product_attention`. It runs wherever torch runs.

Pages are gathered for eight commands at a time, so that the copies stay in the cache. The query heads of one key head
are folded into the query length, because `enable_gqa` is two to three times slower on decode.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tartlet_worker.attention.base import AttentionBatch

COMMANDS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Group:
    """Commands with the same number of query tokens, attended together."""

    commands: list[int]
    tokens: Tensor | slice  # [b * n] rows of q, int64; a slice where they are consecutive
    count: int  # n, query tokens of each
    rows: Tensor  # [b * kv_heads * pages] int64 rows of the pool seen as [pages * kv_heads, page_size * head_dim]
    columns: int  # L
    masks: dict[int | None, tuple[Tensor, Tensor | None]] = field(default_factory=dict)  # by window: mask, dead rows


@dataclass(frozen=True, slots=True)
class Prepared:
    """The groups of one forward, and the batch that they are made of."""

    batch: AttentionBatch
    groups: list[Group]


class TorchGather:
    """Attention over gathered copies of pages."""

    name = "torch-gather"

    def __init__(self, kv_heads: int, device: str) -> None:
        self._kv_heads, self._device = kv_heads, device

    def prepare(self, batch: AttentionBatch) -> Prepared:
        """Split the batch into groups of commands with the same number of query tokens."""
        counts = np.diff(batch.query_indptr)
        listed = np.ones(len(counts), np.bool_) if batch.tables is None else batch.tables.table < 0
        order = np.lexsort((batch.num_pages, counts, listed))
        order = order[counts[order] > 0]
        groups, start = [], 0
        while start < len(order):
            end = start + 1
            most = min(len(order), start + COMMANDS_AT_ONCE)
            kind = counts[order[start]], listed[order[start]]
            while end < most and (counts[order[end]], listed[order[end]]) == kind:
                end += 1
            groups.append(self._group(batch, order[start:end].tolist(), int(counts[order[start]])))
            start = end
        return Prepared(batch, groups)

    def _group(self, batch: AttentionBatch, commands: list[int], count: int) -> Group:
        num_pages = max(1, int(batch.num_pages[commands].max()))
        pages = self._pages(batch, commands, num_pages)
        heads = torch.arange(self._kv_heads, device=self._device)
        rows = pages[:, None, :] * self._kv_heads + heads[None, :, None]  # [b, kv_heads, N]
        first = batch.query_indptr[commands]
        tokens: Tensor | slice
        if np.array_equal(first, first[0] + count * np.arange(len(commands))):
            tokens = slice(int(first[0]), int(first[0]) + count * len(commands))
        else:
            tokens = self._tensor((first[:, None] + np.arange(count)).reshape(-1))
        return Group(commands, tokens, count, rows.reshape(-1), num_pages * batch.page_size)

    def _pages(self, batch: AttentionBatch, commands: list[int], num_pages: int) -> Tensor:
        """Return the pages [b, num_pages] int64 of a group. Those of tables are gathered on the device."""
        if batch.tables is None:
            return self._tensor(batch.pages[commands, :num_pages].astype(np.int64))
        if batch.tables.table[commands[0]] < 0:
            return self._tensor(batch.pages[batch.tables.row[commands], :num_pages].astype(np.int64))
        pools = batch.tables.pools
        table = self._tensor(batch.tables.table[commands].astype(np.int64))
        mine = self._tensor(batch.num_pages[commands].astype(np.int64))[:, None]
        pages = pools.table_rows()[:, :num_pages].index_select(0, table).long()
        return pages.where(torch.arange(num_pages, device=self._device) < mine, pools.zero_page)

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self._device)

    def mask(self, batch: AttentionBatch, group: Group, window: int | None, heads: int) -> tuple[Tensor, Tensor | None]:
        """Return the mask [b, 1, n * heads, L] of a group, and its rows that see nothing, or None.

        `heads` is the number of query heads that share one key head.
        """
        if window in group.masks:
            return group.masks[window]
        if batch.tables is not None and batch.tables.table[group.commands[0]] >= 0:
            group.masks[window] = self._in_order(batch, group, window, heads), None
            return group.masks[window]
        seen = np.stack([batch.visible(b, window)[:, : group.columns] for b in group.commands])  # [b, n, L]
        mask = self._tensor(seen.repeat(heads, axis=1)[:, None])
        alive = seen.any(-1)
        dead = None if alive.all() else self._tensor(~alive.repeat(heads, axis=1))[:, None, :, None]
        group.masks[window] = mask, dead
        return mask, dead

    def _in_order(self, batch: AttentionBatch, group: Group, window: int | None, heads: int) -> Tensor:
        """Return the mask of a group over tables, made on the device: column c is at position c."""
        first = batch.query_indptr[group.commands]
        query = batch.query_position[first[:, None] + np.arange(group.count)]  # [b, n]
        at = self._tensor(query.repeat(heads, axis=1).astype(np.int64))[:, None, :, None]
        column = torch.arange(group.columns, device=self._device)
        seen = column <= at
        return seen if window is None else seen & (at - column < window)

    def run(self, prepared: Prepared, q: Tensor, kv: Tensor, window: int | None) -> Tensor:
        """See `Attention.run`."""
        tokens, heads, head_dim = q.shape
        page_size = kv.shape[3]
        pools = kv.view(2, -1, page_size * head_dim)
        shared = heads // self._kv_heads
        out = torch.empty_like(q)
        for group in prepared.groups:
            b, n = len(group.commands), group.count
            mask, dead = self.mask(prepared.batch, group, window, shared)
            shape = (b, self._kv_heads, group.columns, head_dim)
            keys, values = (pool.index_select(0, group.rows).view(shape) for pool in pools)
            mine = q[group.tokens].view(b, n, self._kv_heads, shared, head_dim).transpose(1, 2)
            queries = mine.reshape(b, self._kv_heads, n * shared, head_dim)
            seen = self.attend(queries, keys, values, mask)
            if dead is not None:
                seen = seen.masked_fill(dead, 0)
            seen = seen.view(b, self._kv_heads, n, shared, head_dim).transpose(1, 2)
            out[group.tokens] = seen.reshape(b * n, heads, head_dim)
        return out.view(tokens, heads * head_dim)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """Attend: q [b, kv_heads, rows, head_dim], k and v [b, kv_heads, L, head_dim], mask [b, 1, rows, L] bool."""
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
