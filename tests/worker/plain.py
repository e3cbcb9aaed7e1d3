"""`forward` of docs/abi.md in float64: a slow model with a dictionary for a KV cache, to hold engines against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tartlet_worker.checkpoints.model_config import read_config
from tartlet_worker.checkpoints.tensors import EMBEDDING, FINAL_NORM, LM_HEAD
from tartlet_worker.checkpoints.weights import WeightReader
from tartlet_worker.models.rope import inverse_frequencies


class PlainModel:
    """One checkpoint; `slots` maps (page, slot) to (position, keys and values by layer)."""

    def __init__(self, path: Path, page_size: int) -> None:
        self.c = c = read_config(path)
        reader = WeightReader(path, c, torch.float64)
        names = [n for n in reader._shapes if reader.has(n)]
        self.w = {n: reader.get(n).numpy() for n in names}
        inv, self.factor = inverse_frequencies(c.rope, c.head_dim)
        self.inv = inv.double().numpy()
        self.page_size = page_size
        self.slots: dict[tuple[int, int], tuple[int, list[Any]]] = {}
        self.hidden: set[tuple[int, int]] = set()

    def norm(self, x: Any, name: str) -> Any:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.c.norm_eps) * self.w[f"{name}.weight"]

    def linear(self, x: Any, name: str) -> Any:
        return x @ self.w[f"{name}.weight"].T + self.w.get(f"{name}.bias", 0.0)

    def rotate(self, x: Any, positions: Any) -> Any:
        angle = np.asarray(positions, np.float64)[:, None, None] * self.inv
        a, b = np.split(x, 2, -1)
        cos, sin = np.cos(angle) * self.factor, np.sin(angle) * self.factor
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def mask_page(self, page: int, bits: int) -> None:
        for i in range(self.page_size):
            (self.hidden.add if bits >> i & 1 else self.hidden.discard)((page, i))

    def copy(self, src: int, dst: int, src_offset: int, dst_offset: int, size: int) -> None:
        for i in range(size):
            a, z = (src, src_offset + i), (dst, dst_offset + i)
            self.slots.pop(z, None)
            if a in self.slots:
                self.slots[z] = self.slots[a]
            (self.hidden.add if a in self.hidden else self.hidden.discard)(z)

    def forward(
        self, tokens: Any, positions: Any, ikv: Any, okv: Any = (), okv_offset: int = 0, mask: Any = None
    ) -> Any:
        """Logits [n, vocab] of the tokens."""
        c, n, size = self.c, len(tokens), self.page_size
        where = [(okv[(okv_offset + i) // size], (okv_offset + i) % size) for i in range(n)] if len(okv) else []
        context = [(p, s) for p in ikv for s in range(size)]
        valid = [k in self.slots and k not in self.hidden and k not in where for k in context]
        column_position = np.array(
            [self.slots[k][0] if v else 0 for k, v in zip(context, valid, strict=True)] + list(positions)
        )
        by_position = column_position[None] <= np.asarray(positions)[:, None]
        seen = (by_position if mask is None else np.asarray(mask, bool)) & np.array(valid + [True] * n)[None]
        x = self.w[EMBEDDING][np.asarray(tokens)]
        stored = []
        for layer in range(c.layers):
            p = f"model.layers.{layer}."
            h = self.norm(x, f"{p}input_layernorm")
            q, k, v = (
                self.linear(h, f"{p}self_attn.{name}_proj").reshape(n, -1, c.head_dim) for name in ("q", "k", "v")
            )
            if c.qk_norm:
                q, k = self.norm(q, f"{p}self_attn.q_norm"), self.norm(k, f"{p}self_attn.k_norm")
            q, k = self.rotate(q, positions), self.rotate(k, positions)
            stored.append((k, v))
            zero = np.zeros((c.kv_heads, c.head_dim))
            past = [self.slots[s][1][layer] if ok else (zero, zero) for s, ok in zip(context, valid, strict=True)]
            keys = np.concatenate([np.array([a for a, _ in past]).reshape(-1, c.kv_heads, c.head_dim), k])
            values = np.concatenate([np.array([b for _, b in past]).reshape(-1, c.kv_heads, c.head_dim), v])
            keys, values = keys.repeat(c.group, 1), values.repeat(c.group, 1)
            now = seen
            if c.windows[layer] is not None:
                now = seen & (np.asarray(positions)[:, None] - column_position[None] < c.windows[layer])
            score = np.einsum("nhd,chd->nhc", q, keys) / np.sqrt(c.head_dim)
            weight = np.where(now[:, None], np.exp(score - score.max(-1, keepdims=True)), 0)
            total = weight.sum(-1, keepdims=True)
            out = np.einsum(
                "nhc,chd->nhd", np.divide(weight, total, where=total > 0, out=np.zeros_like(weight)), values
            )
            x = x + self.linear(out.reshape(n, -1), f"{p}self_attn.o_proj")
            h = self.norm(x, f"{p}post_attention_layernorm")
            gate, up = self.linear(h, f"{p}mlp.gate_proj"), self.linear(h, f"{p}mlp.up_proj")
            x = x + self.linear(gate / (1 + np.exp(-gate)) * up, f"{p}mlp.down_proj")
        for i, slot in enumerate(where):
            self.slots[slot] = (int(positions[i]), [(k[i], v[i]) for k, v in stored])
        head = self.w[EMBEDDING] if c.tied else self.w[LM_HEAD]
        return self.norm(x, FINAL_NORM.removesuffix(".weight")) @ head.T
