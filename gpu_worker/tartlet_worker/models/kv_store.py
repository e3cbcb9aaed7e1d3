"""What a layer does between its first multiplication and attention: norm, rotation, and storing keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tartlet_worker.checkpoints.model_config import ModelConfig
from tartlet_worker.models.pointwise import Pointwise, TorchPointwise, rms_norm
from tartlet_worker.models.rope import rotate


@dataclass(frozen=True, slots=True)
class Places:
    """Where T tokens of one pass are stored, and how they are rotated."""

    page: Tensor  # [T] int64
    slot: Tensor  # [T] int64
    cos: Tensor  # [T, head_dim / 2]
    sin: Tensor  # [T, head_dim / 2]


class KvStore(Protocol):
    """Norms and rotates queries and keys, and stores keys and values in their pages."""

    @property
    def pointwise(self) -> Pointwise:
        """The layers' other operations between multiplications, made in the same way."""

    def store(self, qkv: Tensor, norms: tuple[Tensor, Tensor] | None, places: Places, kv: Tensor) -> Tensor:
        """Store the keys and values of one layer.

        Args:
            qkv: [T, heads + 2 kv_heads, head_dim], as the layer's multiplication gave them.
            norms: the weights [head_dim] of the norms of queries and of keys, or None.
            places: of the tokens.
            kv: [2, pages, kv_heads, page_size, head_dim] one layer of the pool.

        Returns:
            [T, heads, head_dim] the rotated queries.
        """


class TorchStore:
    """Storing by torch's operations, on any device."""

    def __init__(self, config: ModelConfig) -> None:
        self._c = config
        self._pointwise = TorchPointwise(config)

    @property
    def pointwise(self) -> TorchPointwise:
        """See `KvStore.pointwise`."""
        return self._pointwise

    def store(self, qkv: Tensor, norms: tuple[Tensor, Tensor] | None, places: Places, kv: Tensor) -> Tensor:
        """See `KvStore.store`."""
        c, cos, sin = self._c, places.cos[:, None], places.sin[:, None]
        v = qkv[:, c.heads + c.kv_heads :]
        if norms is None:
            qk = rotate(qkv[:, : c.heads + c.kv_heads], cos, sin)
            q, k = qk[:, : c.heads], qk[:, c.heads :]
        else:
            q = rotate(rms_norm(qkv[:, : c.heads], norms[0], c.norm_eps), cos, sin)
            k = rotate(rms_norm(qkv[:, c.heads : c.heads + c.kv_heads], norms[1], c.norm_eps), cos, sin)
        heads = torch.arange(c.kv_heads, device=qkv.device)
        rows = ((places.page[:, None] * c.kv_heads + heads) * kv.shape[3] + places.slot[:, None]).reshape(-1)
        keys, values = kv.view(2, -1, c.head_dim)
        keys.index_copy_(0, rows, k.reshape(-1, c.head_dim))
        values.index_copy_(0, rows, v.reshape(-1, c.head_dim))
        return q
