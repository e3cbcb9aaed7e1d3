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
    pointers: tuple[int, ...]  # indptr, query positions, pages, width, pages of each, column positions
    allowed: Any
    keep: list[npt.NDArray[Any]]


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
        columns = (batch.query_indptr, batch.query_position, batch.pages, batch.num_pages, batch.column_position)
        arrays = [np.ascontiguousarray(c) for c in columns]
        return Prepared(batch, tuple(map(address, arrays)), allowed, [*arrays, *keep])

    def run(self, prepared: Prepared, q: Tensor, kv: Tensor, window: int | None) -> Tensor:
        """See `Attention.run`."""
        tokens, heads, head_dim = q.shape
        q = q.contiguous()
        out = torch.empty_like(q)
        indptr, at, pages, num_pages, position = prepared.pointers
        self._run[q.dtype](
            q.data_ptr(),
            kv[0].data_ptr(),
            kv[1].data_ptr(),
            out.data_ptr(),
            len(prepared.batch.num_pages),
            indptr,
            at,
            pages,
            prepared.batch.pages.shape[1],
            num_pages,
            position,
            prepared.allowed,
            window or 0,
            heads,
            self._kv_heads,
            kv.shape[3],
            head_dim,
            head_dim**-0.5,
        )
        return out.view(tokens, heads * head_dim)
