"""The decoder on one CPU thread in bf16, with all layers in one foreign call (`kernels/decoder.c`).

Weights are laid out for the kernels once, at loading. The residual stream is in float32. The bits of a result do not
depend on the rest of the batch, so `batch_invariant` costs nothing here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tartlet_worker.attention.c_kernel import CColumns, allowed_pointers
from tartlet_worker.checkpoints.model_config import ModelConfig
from tartlet_worker.checkpoints.tensors import EMBEDDING, FINAL_NORM, LM_HEAD
from tartlet_worker.checkpoints.weights import WeightReader
from tartlet_worker.csr import Ints
from tartlet_worker.engine import ignore_computing
from tartlet_worker.kernels import library
from tartlet_worker.kernels.library import MAX_GROUP, CLayer, CMatrix, CModel, CPass, address
from tartlet_worker.models.base import Decoder, ForwardPlan
from tartlet_worker.models.rope import RopeTable
from tartlet_worker.pools import Pools

_BLOCK = 32  # columns and k values that packed weights are padded to


def supports(config: ModelConfig, device: str, dtype: torch.dtype) -> bool:
    """Return whether this machine's kernels can run such a model."""
    fits = dtype == torch.bfloat16 and config.group <= MAX_GROUP and not config.gemma and not config.experts
    return device == "cpu" and fits and library() is not None


def _padded(count: int) -> int:
    return -(-count // _BLOCK) * _BLOCK


@dataclass(frozen=True, slots=True)
class _PoolsView:
    """The pools as the kernels see them."""

    pools: Pools
    model: CModel
    embeds: npt.NDArray[np.int16]  # [embeds, dim] bf16
    kv: int  # address


class CDecoder(Decoder):
    """A `Decoder` whose weights are in the layout of the kernels."""

    def __init__(self, config: ModelConfig, reader: WeightReader) -> None:
        loaded = library()
        assert loaded is not None, "the caller asks `supports` first"
        self.config, self._lib = config, loaded
        self.passes = 0  # through the layers so far
        self.computing: Callable[[], None] = ignore_computing
        """Called right before the kernels run, because they leave the interpreter free."""
        self._view: _PoolsView | None = None
        self._keep: list[Tensor] = []  # what pointers of the structures name
        embedding = reader.get(EMBEDDING)  # [vocab, dim]
        self._embedding = _bits(embedding.contiguous())
        layers = [self._layer(reader, i) for i in range(config.layers)]
        self._layers = (CLayer * config.layers)(*layers)
        self._final_norm = self._floats(reader.get(FINAL_NORM))
        self._head = self._pack(embedding if config.tied else reader.get(LM_HEAD), None)
        self._rope = RopeTable(config.rope, config.head_dim, config.max_position, torch.float32, "cpu")

    def _floats(self, values: Tensor) -> int:
        """Return the address of a float32 copy, which lives as long as the decoder."""
        self._keep.append(values.float().contiguous())
        return self._keep[-1].data_ptr()

    def _pack(self, weight: Tensor, bias: Tensor | None) -> CMatrix:
        """Return a weight [n, k] in the kernels' layout."""
        n, k = weight.shape
        out = torch.empty(_padded(n) * _padded(k), dtype=torch.bfloat16)
        weight = weight.contiguous()
        self._lib.pack_weights(weight.data_ptr(), n, k, out.data_ptr())
        self._keep.append(out)
        address = None
        if bias is not None:
            address = self._floats(torch.nn.functional.pad(bias, (0, _padded(n) - n)))
        return CMatrix(out.data_ptr(), address, _padded(n), _padded(k))

    def _layer(self, reader: WeightReader, i: int) -> CLayer:
        p, config = f"model.layers.{i}.", self.config

        def named(names: Sequence[str], kind: str) -> Tensor | None:
            if not reader.has(f"{p}{names[0]}.{kind}"):
                return None
            return reader.cat(*(f"{p}{name}.{kind}" for name in names))

        def matrix(*names: str) -> CMatrix:
            weight = named(names, "weight")
            assert weight is not None
            return self._pack(weight, named(names, "bias"))

        def norm(name: str) -> int | None:
            return self._floats(reader.get(f"{p}{name}.weight")) if reader.has(f"{p}{name}.weight") else None

        both = ("mlp.gate_proj", "mlp.up_proj")
        gate_up = named(both, "weight")
        assert gate_up is not None
        bias = named(both, "bias")
        return CLayer(
            norm("input_layernorm"),
            norm("self_attn.q_norm"),
            norm("self_attn.k_norm"),
            norm("post_attention_layernorm"),
            matrix("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            matrix("self_attn.o_proj"),
            self._pack(_in_turn(gate_up), None if bias is None else _in_turn(bias[:, None])[:, 0]),
            matrix("mlp.down_proj"),
            config.windows[i] or 0,
        )

    def _seen(self, pools: Pools) -> _PoolsView:
        """Describe the model over these pools as the kernels read it."""
        if self._view is None or self._view.pools is not pools:
            c, kv = self.config, pools.kv
            shape = (c.dim, c.layers, c.heads, c.kv_heads, c.head_dim, pools.page_size)
            model = CModel(*shape, kv.stride(0), kv.stride(1), c.norm_eps, self._layers, self._final_norm)
            self._view = _PoolsView(pools, model, _bits(pools.embeds), kv.data_ptr())
        return self._view

    def embed(self, pools: Pools, embed: Ints, token: Ints) -> None:
        """Put the embeddings of tokens [N] into embeds [N] of the pool."""
        self._seen(pools).embeds[embed] = self._embedding[token]

    def run(self, plan: ForwardPlan, pools: Pools) -> None:
        """Pass a plan's tokens through the layers; store keys, values and the output embeds (after the last norm)."""
        self.passes += 1
        c, batch, view = self.config, plan.attention, self._seen(pools)
        self._rope.reserve(int(plan.position.max()) + 1)
        out = np.empty((len(plan.out_token), c.dim), np.int16)
        allowed, keep = allowed_pointers(batch)
        inputs = (
            view.embeds[plan.embed],  # [T, dim]
            self._rope.cos.numpy()[plan.position],  # [T, head_dim / 2]
            self._rope.sin.numpy()[plan.position],
            plan.page * (c.kv_heads * pools.page_size) + plan.slot,
        )
        columns = CColumns.of(batch)
        arrays = [np.ascontiguousarray(a) for a in (*inputs, batch.query_indptr, batch.query_position, plan.out_token)]
        x, cos, sin, rows, indptr, at, out_token = map(address, arrays)
        one = CPass(
            len(plan.embed),
            len(batch.num_pages),
            columns.width,
            columns.most,
            len(plan.out_token),
            x,
            cos,
            sin,
            rows,
            view.kv,
            indptr,
            at,
            columns.pages,
            columns.num_pages,
            columns.position,
            None if allowed is None else ctypes.addressof(allowed),
            out_token,
            address(out),
        )
        self.computing()
        self._lib.decoder_run(ctypes.addressof(view.model), ctypes.addressof(one))
        del keep
        if len(plan.out_embed):
            view.embeds[plan.out_embed] = out

    def logits(self, pools: Pools, embed: Ints) -> Tensor:
        """Compute the logits [N, vocab] float32 of output embeds [N] of the pool."""
        hidden = self._seen(pools).embeds[embed]
        out = torch.empty(len(hidden), self.config.vocab)
        head = ctypes.addressof(self._head)
        self.computing()
        self._lib.linear(address(hidden), *hidden.shape, head, out.data_ptr(), self.config.vocab)
        return out


def _bits(values: Tensor) -> npt.NDArray[np.int16]:
    """View bfloat16 as int16 of numpy, whose indexing takes a fraction of torch's time in short steps."""
    return np.asarray(values.view(torch.int16).numpy())


def _in_turn(gate_up: Tensor) -> Tensor:
    """Interleave rows of [2 * ffn, k]: 16 of the gate, 16 of the up projection, and so on, padded to whole blocks."""
    half = gate_up.shape[0] // 2
    padded = torch.nn.functional.pad(gate_up.view(2, half, -1), (0, 0, 0, _padded(half) - half))
    return padded.view(2, -1, 16, gate_up.shape[1]).transpose(0, 1).reshape(-1, gate_up.shape[1])
