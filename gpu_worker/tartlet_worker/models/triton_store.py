"""Norm, rotation and storing as one Triton kernel in place of about twenty of torch's.

The kernel rounds to the model's dtype after the same operations as `kv_store.TorchStore`, so both give the same keys up
to the order in which a norm adds its squares.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tartlet_worker.checkpoints.model_config import ModelConfig
from tartlet_worker.models.kv_store import Places


@triton.jit
def norm_rope_append(
    qkv, query_norm, key_norm, cos, sin, page, slot, queries, keys, values, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr, PAGE: tl.constexpr,
    NORMS: tl.constexpr,
):  # fmt: skip
    """Take one head of one token: program (t, h) reads `qkv[t, h]` and writes a query, a key or a value.

    Args:
        qkv: [T, HEADS + 2 KV_HEADS, DIM].
        query_norm, key_norm: [DIM], with NORMS.
        cos, sin: [T, DIM / 2].
        page, slot: [T] int64.
        queries: [T, HEADS, DIM].
        keys, values: [pages, KV_HEADS, PAGE, DIM] of one layer.
        HALF: DIM / 2, up to a power of two.
    """
    token = tl.program_id(0)
    head = tl.program_id(1)
    KIND = queries.dtype.element_ty
    half = tl.arange(0, HALF)
    inside = half < DIM // 2
    source = qkv + (token.to(tl.int64) * (HEADS + 2 * KV_HEADS) + head) * DIM
    low = tl.load(source + half, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(source + DIM // 2 + half, mask=inside, other=0.0).to(tl.float32)
    place = tl.load(page + token) * KV_HEADS * PAGE + tl.load(slot + token)
    if head >= HEADS + KV_HEADS:
        target = values + (place + (head - HEADS - KV_HEADS) * PAGE) * DIM
        tl.store(target + half, low.to(KIND), mask=inside)
        tl.store(target + DIM // 2 + half, high.to(KIND), mask=inside)
    else:
        of_query = head < HEADS
        if NORMS:
            scale = tl.rsqrt((tl.sum(low * low, 0) + tl.sum(high * high, 0)) / DIM + eps)
            norm = query_norm
            if head >= HEADS:
                norm = key_norm
            low_weight = tl.load(norm + half, mask=inside, other=0.0).to(tl.float32)
            high_weight = tl.load(norm + DIM // 2 + half, mask=inside, other=0.0).to(tl.float32)
            low = ((low * scale).to(KIND).to(tl.float32) * low_weight).to(KIND).to(tl.float32)
            high = ((high * scale).to(KIND).to(tl.float32) * high_weight).to(KIND).to(tl.float32)
        turn = tl.load(cos + token * (DIM // 2) + half, mask=inside, other=0.0).to(tl.float32)
        lift = tl.load(sin + token * (DIM // 2) + half, mask=inside, other=0.0).to(tl.float32)
        low_turned = (low * turn).to(KIND).to(tl.float32) - (high * lift).to(KIND).to(tl.float32)
        high_turned = (high * turn).to(KIND).to(tl.float32) + (low * lift).to(KIND).to(tl.float32)
        if of_query:
            target = queries + (token.to(tl.int64) * HEADS + head) * DIM
            tl.store(target + half, low_turned.to(KIND), mask=inside)
            tl.store(target + DIM // 2 + half, high_turned.to(KIND), mask=inside)
        else:
            goal = keys + (place + (head - HEADS) * PAGE) * DIM
            tl.store(goal + half, low_turned.to(KIND), mask=inside)
            tl.store(goal + DIM // 2 + half, high_turned.to(KIND), mask=inside)


class TritonStore:
    """Storing by one kernel a layer, on a CUDA device or in Triton's interpreter."""

    def __init__(self, config: ModelConfig) -> None:
        self._c = config

    def store(self, qkv: Tensor, norms: tuple[Tensor, Tensor] | None, places: Places, kv: Tensor) -> Tensor:
        """See `KvStore.store`."""
        c, tokens = self._c, len(qkv)
        qkv = qkv.contiguous()
        queries = torch.empty(tokens, c.heads, c.head_dim, dtype=qkv.dtype, device=qkv.device)
        query_norm, key_norm = (qkv, qkv) if norms is None else norms
        norm_rope_append[tokens, c.heads + 2 * c.kv_heads](
            qkv, query_norm, key_norm, places.cos, places.sin, places.page, places.slot, queries, kv[0], kv[1],
            c.norm_eps, HEADS=c.heads, KV_HEADS=c.kv_heads, DIM=c.head_dim,
            HALF=1 << (c.head_dim // 2 - 1).bit_length(), PAGE=kv.shape[3], NORMS=norms is not None,
        )  # fmt: skip
        return queries
