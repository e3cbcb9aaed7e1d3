"""Attention by Triton kernels that read pages in place. It serves every command, dtype and head size.

The host cuts a batch into tiles and uploads one array of integers. A tile over a page table needs no list of its
pages, so a decode step uploads the same number of bytes at any context length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tartlet_worker.attention.base import AttentionBatch, StaticRows
from tartlet_worker.attention.triton_kernels import (
    BLOCK,
    RUN,
    TILE_FIELDS,
    WIDE_BYTES,
    attend,
    join_runs,
    key_bytes,
    stages,
)
from tartlet_worker.attention.triton_static import TritonStatic, reaches, tiles_of
from tartlet_worker.transfers import Transfers

LOW_TILE, HIGH_TILE = 16, 64
"""Rows of a tile: the least that tensor cores take, and those of a prefill."""
LONG_PREFILL = 16
"""Tokens of a command from which its tiles are high."""
SPLIT_TILES = 256
"""With fewer tiles than that, counting key heads, the runs of long contexts are computed side by side."""
SPLIT_BYTES = 128 << 20
"""Memory for the states of runs that are computed side by side, at most."""
MOST_DIMS = 256
"""Numbers of the widest head."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The tiles of a batch on the device."""

    tiles: Tensor  # [tiles, TILE_FIELDS] int32
    query_position: Tensor  # [T] int32
    listed: Tensor  # [R, width] int32 pages
    positions: Tensor  # [R, width * page_size] int32
    tables: Tensor  # [tables, width] int32
    masks: Tensor | None  # uint8, [tokens of masked commands, width * page_size] flat
    width: int  # pages of a row of `listed`
    rows: int  # of a tile
    runs: int  # of the longest command


class TritonPaged:
    """Attention over pages in place, on a CUDA device or in Triton's interpreter."""

    name = "triton"

    def __init__(
        self, kv_heads: int, device: str, *, group: int, batch_invariant: bool = False, bytes_of_key: int = 0
    ) -> None:
        """Note the model's heads.

        Args:
            kv_heads: key heads.
            device: torch's name.
            group: query heads that share one key head.
            batch_invariant: take tiles of one height, so that a row's bits don't depend on its batch.
            bytes_of_key: as `key_bytes` says. Wide keys have low tiles only: a high one holds more numbers than there
                are registers, and takes more than half a minute to compile.
        """
        self._kv_heads, self._group = kv_heads, group
        self._low = batch_invariant or bytes_of_key >= WIDE_BYTES
        self._transfers = Transfers(device)

    def reaches(self, rows: int, most: int) -> tuple[int, ...]:
        """See `GraphAttention.reaches`."""
        if rows * self._kv_heads >= SPLIT_TILES:
            return (most,)
        state = 4 * self._rows(1) * (MOST_DIMS + 2)  # bytes of one run of one tile and key head
        return reaches(most, SPLIT_BYTES // (rows * self._kv_heads * state) * RUN)

    def static(self, rows: StaticRows, reach: int) -> TritonStatic:
        """See `GraphAttention.static`."""
        prepared = Prepared(
            tiles=tiles_of(rows),
            query_position=rows.position,
            listed=rows.pages,
            positions=rows.position,
            tables=rows.pages,
            masks=None,
            width=rows.pages.shape[1],
            rows=self._rows(1),
            runs=-(-reach // RUN),
        )
        return TritonStatic(prepared.tiles, rows.position, partial(self.run, prepared))

    def _rows(self, tokens: int) -> int:
        """Return the rows of a batch's tiles; `tokens` are those of its longest command."""
        rows = LOW_TILE if self._low or tokens < LONG_PREFILL else HIGH_TILE
        return max(rows, 1 << (self._group - 1).bit_length())

    def prepare(self, batch: AttentionBatch) -> Prepared:
        """See `Attention.prepare`."""
        counts = np.diff(batch.query_indptr)
        rows = self._rows(int(counts.max(initial=0)))
        tiles, masks = self._tiles(batch, counts, rows)
        columns = tiles[:, 3]
        parts = [tiles, batch.query_position, batch.pages, batch.column_position]
        sent = self._transfers.up(parts)
        tables = sent[2] if batch.tables is None else batch.tables.pools.table_rows()
        return Prepared(
            tiles=sent[0].view(-1, TILE_FIELDS),
            query_position=sent[1],
            listed=sent[2],
            positions=sent[3],
            tables=tables,
            masks=None if masks is None else self._transfers.up_bytes(masks),
            width=batch.pages.shape[1],
            rows=rows,
            runs=-(-int(columns.max(initial=1)) // RUN),
        )

    def _tiles(
        self, batch: AttentionBatch, counts: npt.NDArray[np.int64], rows: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8] | None]:
        """Return the tiles [tiles, TILE_FIELDS], and the masks of all masked commands, one below another."""
        height = rows // self._group  # tokens of a tile
        number = -(-counts // height)
        command = np.arange(len(counts)).repeat(number)
        ends = number.cumsum()
        rank = np.arange(len(command)) - (ends - number).repeat(number)
        first = batch.query_indptr[:-1][command] + rank * height
        tiles = np.empty((len(command), TILE_FIELDS), np.int32)
        tiles[:, 0], tiles[:, 1] = command, first
        tiles[:, 2] = np.minimum(height, batch.query_indptr[1:][command] - first)
        tiles[:, 3] = batch.num_pages[command] * batch.page_size
        tiles[:, 4] = command
        tiles[:, 5] = -1
        if batch.tables is not None:
            table = batch.tables.table[command]
            over = table >= 0
            tiles[:, 4] = np.where(over, -1 - table, batch.tables.row[command])
            last = batch.query_position[first + tiles[:, 2] - 1]  # tokens of a plain command are in order
            tiles[:, 3] = np.where(over, np.minimum(tiles[:, 3], last + 1), tiles[:, 3])
        if not batch.allowed:
            return tiles, None
        offset = 0
        for b, mask in batch.allowed.items():
            mine = command == b
            tiles[mine, 5] = offset + rank[mine] * height
            offset += len(mask)
        return tiles, np.concatenate(list(batch.allowed.values())).view(np.uint8)

    def run(self, prepared: Prepared, q: Tensor, kv: Tensor, window: int | None) -> Tensor:
        """See `Attention.run`."""
        tokens, heads, dim = q.shape
        q = q.contiguous()
        out = torch.empty_like(q)
        p, kv_heads, dims = prepared, self._kv_heads, key_bytes(dim, 1)
        tiles = len(p.tiles)
        if not tiles:
            return out.view(tokens, heads * dim)
        held = 4 * tiles * kv_heads * p.runs * p.rows * (dims + 2)
        split = p.runs > 1 and tiles * kv_heads < SPLIT_TILES and held <= SPLIT_BYTES
        states = (tiles, kv_heads, p.runs, p.rows) if split else (1,)
        top, total = torch.empty(2, *states, dtype=torch.float32, device=q.device)
        sums = torch.empty(*states, dims, dtype=torch.float32, device=q.device)
        grid = (tiles, kv_heads, p.runs if split else 1)
        shape = {"HEADS": heads, "KV_HEADS": kv_heads, "DIM": dim, "DIMS": dims}
        shape |= {"ROWS": p.rows, "BLOCK": BLOCK, "RUN": RUN, "FIELDS": TILE_FIELDS, "WINDOW": window is not None}
        attend[grid](
            q, kv[0], kv[1], out, top, total, sums,
            p.tiles, p.query_position, p.listed, p.positions, p.tables, p.tiles if p.masks is None else p.masks,
            p.tables.shape[-1], p.width, window or 0, dim**-0.5 * math.log2(math.e), p.runs,
            **shape, PAGE=kv.shape[3], MASKS=p.masks is not None, SPLIT=split, WIDE=q.device.type == "cpu",
            num_stages=stages(dim, kv.element_size()),
        )  # fmt: skip
        if split:
            join_runs[tiles, kv_heads](out, top, total, sums, p.tiles, p.query_position, window or 0, p.runs, **shape)
        return out.view(tokens, heads * dim)
