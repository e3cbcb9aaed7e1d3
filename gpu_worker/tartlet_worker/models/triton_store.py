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
from tartlet_worker.models.triton_pointwise import TritonPointwise

HEADS_A_PROGRAM = 1
"""Heads that one program takes on a device. In Triton's interpreter programs run in turn, so one takes all heads."""


@triton.jit(do_not_specialize=["count"])
def norm_rope_append(
    qkv, query_norm, key_norm, cos, sin, page, slot, queries, keys, values, eps, count,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr, PAGE: tl.constexpr,
    NORMS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Take ROWS heads: for each, read `qkv[t, h]` of its token and write a query, a key or a value.

    Args:
        qkv: [T, HEADS + 2 KV_HEADS, DIM].
        query_norm, key_norm: [DIM], with NORMS.
        cos, sin: [T, DIM / 2].
        page, slot: [T] int64.
        queries: [T, HEADS, DIM].
        keys, values: [pages, KV_HEADS, PAGE, DIM] of one layer.
        count: T (HEADS + 2 KV_HEADS).
        HALF: DIM / 2, up to a power of two.
    """
    KIND = queries.dtype.element_ty
    ALL: tl.constexpr = HEADS + 2 * KV_HEADS
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    alive = row < count
    token = row // ALL
    head = row % ALL
    half = tl.arange(0, HALF)[None, :]
    of_query = (head < HEADS)[:, None]
    of_value = (head >= HEADS + KV_HEADS)[:, None]
    inside = alive[:, None] & (half < DIM // 2)
    source = qkv + row[:, None] * DIM + half
    low = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(source + DIM // 2, mask=inside, other=0.0).to(tl.float32)
    place = tl.load(page + token, mask=alive, other=0) * KV_HEADS * PAGE + tl.load(slot + token, mask=alive, other=0)
    key_place = (place + (head - HEADS) * PAGE)[:, None] * DIM + half
    value_place = (place + (head - HEADS - KV_HEADS) * PAGE)[:, None] * DIM + half
    tl.store(values + value_place, low.to(KIND), mask=inside & of_value)
    tl.store(values + value_place + DIM // 2, high.to(KIND), mask=inside & of_value)

    turned = inside & (head < HEADS + KV_HEADS)[:, None]
    if NORMS:
        scale = tl.rsqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / DIM + eps)[:, None]
        queries_weigh = turned & of_query
        keys_weigh = turned & (head >= HEADS)[:, None]
        low_weight = tl.load(query_norm + half, mask=queries_weigh, other=0.0).to(tl.float32)
        low_weight += tl.load(key_norm + half, mask=keys_weigh, other=0.0).to(tl.float32)
        high_weight = tl.load(query_norm + DIM // 2 + half, mask=queries_weigh, other=0.0).to(tl.float32)
        high_weight += tl.load(key_norm + DIM // 2 + half, mask=keys_weigh, other=0.0).to(tl.float32)
        low = ((low * scale).to(KIND).to(tl.float32) * low_weight).to(KIND).to(tl.float32)
        high = ((high * scale).to(KIND).to(tl.float32) * high_weight).to(KIND).to(tl.float32)
    angle = token[:, None] * (DIM // 2) + half
    turn = tl.load(cos + angle, mask=turned, other=0.0).to(tl.float32)
    lift = tl.load(sin + angle, mask=turned, other=0.0).to(tl.float32)
    low_turned = (low * turn).to(KIND).to(tl.float32) - (high * lift).to(KIND).to(tl.float32)
    high_turned = (high * turn).to(KIND).to(tl.float32) + (low * lift).to(KIND).to(tl.float32)
    target = queries + (token * HEADS + head)[:, None] * DIM + half
    tl.store(target, low_turned.to(KIND), mask=turned & of_query)
    tl.store(target + DIM // 2, high_turned.to(KIND), mask=turned & of_query)
    stored = turned & (head >= HEADS)[:, None]
    tl.store(keys + key_place, low_turned.to(KIND), mask=stored)
    tl.store(keys + key_place + DIM // 2, high_turned.to(KIND), mask=stored)


class TritonStore:
    """Storing by one kernel a layer, on a CUDA device or in Triton's interpreter."""

    def __init__(self, config: ModelConfig) -> None:
        self._c = config
        self._pointwise = TritonPointwise(config)

    @property
    def pointwise(self) -> TritonPointwise:
        """See `KvStore.pointwise`."""
        return self._pointwise

    def store(self, qkv: Tensor, norms: tuple[Tensor, Tensor] | None, places: Places, kv: Tensor) -> Tensor:
        """See `KvStore.store`."""
        c, tokens = self._c, len(qkv)
        qkv = qkv.contiguous()
        queries = torch.empty(tokens, c.heads, c.head_dim, dtype=qkv.dtype, device=qkv.device)
        query_norm, key_norm = (qkv, qkv) if norms is None else norms
        count = tokens * (c.heads + 2 * c.kv_heads)
        rows = HEADS_A_PROGRAM if qkv.device.type == "cuda" else 1 << (count - 1).bit_length()
        norm_rope_append[(-(-count // rows),)](
            qkv, query_norm, key_norm, places.cos, places.sin, places.page, places.slot, queries, kv[0], kv[1],
            c.norm_eps, count, HEADS=c.heads, KV_HEADS=c.kv_heads, DIM=c.head_dim,
            HALF=1 << (c.head_dim // 2 - 1).bit_length(), PAGE=kv.shape[3], NORMS=norms is not None, ROWS=rows,
        )  # fmt: skip
        return queries
