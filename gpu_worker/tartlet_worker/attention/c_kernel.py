"""Attention by the C kernel. It reads pages in place, and gives the same bits whatever else is in the batch."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tartlet_worker.attention.base import AttentionBatch
from tartlet_worker.kernels import library
from tartlet_worker.kernels.library import address


@dataclass(frozen=True, slots=True)
class Prepared:
    """A batch as the kernel reads it, with references to all arrays that its pointers name."""

    batch: AttentionBatch
    columns: CColumns
    pointers: tuple[int, int]  # indptr, query positions
    allowed: Any
    keep: list[npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class CColumns:
    """The columns of a batch as the kernels read them: for each command the addresses of its pages and positions."""

    pages: int  # address of [B] addresses
    num_pages: int  # address of [B] int32
    position: int  # address of [B] addresses; 0 stands for columns at their own numbers
    width: int  # pages of a row of the masks
    most: int  # pages of the longest command
    keep: tuple[npt.NDArray[Any], ...]

    @classmethod
    def of(cls, batch: AttentionBatch) -> CColumns:
        """Find the addresses. Nothing that is as long as a context is touched."""
        pages, position = np.ascontiguousarray(batch.pages), np.ascontiguousarray(batch.column_position)
        num_pages = np.ascontiguousarray(batch.num_pages)
        row = np.arange(len(num_pages)) if batch.tables is None else batch.tables.row
        page_at = address(pages) + row * (pages.shape[1] * 4)
        position_at = address(position) + row * (position.shape[1] * 4)
        keep: tuple[npt.NDArray[Any], ...] = pages, position, num_pages
        if batch.tables is not None:
            rows, table = batch.tables.pools.tables.rows, batch.tables.table
            over = table >= 0
            page_at = np.where(over, address(rows) + table.astype(np.int64) * (rows.shape[1] * 4), page_at)
            position_at = np.where(over, 0, position_at)
            keep += (rows,)
        page_at, position_at = page_at.astype(np.int64), position_at.astype(np.int64)
        most = int(num_pages.max(initial=1))
        return cls(
            address(page_at), address(num_pages), address(position_at), pages.shape[1], most,
            (*keep, page_at, position_at),
        )  # fmt: skip


def allowed_pointers(batch: AttentionBatch) -> tuple[Any, list[npt.NDArray[Any]]]:
    """Return [B] pointers to the commands' masks as bytes, or None, and the arrays that they point to."""
    if not batch.allowed:
        return None, []
    keep = {b: np.ascontiguousarray(mask).view(np.uint8) for b, mask in batch.allowed.items()}
    count = len(batch.num_pages)
    addresses = [address(keep[b]) if b in keep else None for b in range(count)]
    return (ctypes.c_void_p * count)(*addresses), list(keep.values())


class CKernel:
    """Attention by the C kernel, on a CPU, in bfloat16 or float32."""

    name = "c"

    def __init__(self, kv_heads: int, device: str) -> None:
        loaded = library()
        if loaded is None or device != "cpu":
            raise ValueError("the C kernels are not built on this machine, or don't serve this device")
        self._kv_heads = kv_heads
        self._run = {torch.bfloat16: loaded.attend_bf16, torch.float32: loaded.attend_f32}

    def prepare(self, batch: AttentionBatch) -> Prepared:
        """See `Attention.prepare`."""
        allowed, keep = allowed_pointers(batch)
        indptr, at = np.ascontiguousarray(batch.query_indptr), np.ascontiguousarray(batch.query_position)
        return Prepared(batch, CColumns.of(batch), (address(indptr), address(at)), allowed, [indptr, at, *keep])

    def run(self, prepared: Prepared, q: Tensor, kv: Tensor, window: int | None) -> Tensor:
        """See `Attention.run`."""
        tokens, heads, head_dim = q.shape
        q = q.contiguous()
        out = torch.empty_like(q)
        (indptr, at), columns = prepared.pointers, prepared.columns
        self._run[q.dtype](
            q.data_ptr(),
            kv[0].data_ptr(),
            kv[1].data_ptr(),
            out.data_ptr(),
            len(prepared.batch.num_pages),
            indptr,
            at,
            columns.pages,
            columns.width,
            columns.most,
            columns.num_pages,
            columns.position,
            prepared.allowed,
            window or 0,
            heads,
            self._kv_heads,
            kv.shape[3],
            head_dim,
            head_dim**-0.5,
        )
        return out.view(tokens, heads * head_dim)
