"""The Llama-family decoder over paged keys and values, in plain torch on any device.

One code path for all families: what differs (biases, query/key norms, windows, rotary scaling) is data in
`ModelConfig`. Queries, keys and values are one multiplication, gate and up projection another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tartlet_worker.attention.base import Attention
from tartlet_worker.checkpoints.adapters import Adapter
from tartlet_worker.checkpoints.model_config import ModelConfig
from tartlet_worker.checkpoints.tensors import EMBEDDING, FINAL_NORM, LM_HEAD
from tartlet_worker.checkpoints.weights import WeightReader
from tartlet_worker.csr import Ints
from tartlet_worker.engine import ignore_computing
from tartlet_worker.models.base import Decoder, ForwardPlan
from tartlet_worker.models.feed_forward import Experts, FeedForward, feed_forward, groups
from tartlet_worker.models.kv_store import KvStore, Places, TorchStore
from tartlet_worker.models.linear import Linear, make_linear
from tartlet_worker.models.lora import Adapters
from tartlet_worker.models.rope import RopeTable
from tartlet_worker.pools import Pools


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One decoder layer."""

    input_norm: Tensor  # [dim]
    qkv: Linear  # dim -> (heads + 2 kv_heads) * head_dim
    q_norm: Tensor | None  # [head_dim]
    k_norm: Tensor | None  # [head_dim]
    out: Linear  # heads * head_dim -> dim
    post_norm: Tensor  # [dim]
    ffn: FeedForward
    window: int | None


class TorchDecoder(Decoder):
    """A model's weights and its pass through the layers."""

    def __init__(
        self,
        config: ModelConfig,
        reader: WeightReader,
        attention: Attention,
        *,
        device: str,
        batch_invariant: bool,
        kv_store: KvStore | None = None,
        adapters: Sequence[Adapter] | None = None,
    ) -> None:
        """Load the weights; `adapters`: those that it begins with, None if it is never to have any.

        The other arguments are as in `EngineOptions`.
        """
        self.config = config
        self.attend_by(attention, kv_store)
        self.embedding = reader.get(EMBEDDING).to(device)  # [vocab, dim]
        self._embed_scale = torch.tensor(config.dim**0.5, dtype=self.embedding.dtype).item()  # Gemma's, rounded
        self._invariant, self._device = batch_invariant, device
        self.adapters: Adapters | None = None
        """What its layers have of LoRA adapters; None: they can't have any."""
        if adapters is not None:
            self.adapters = Adapters(dtype=self.embedding.dtype, device=device, batch_invariant=batch_invariant)
        self.passes = 0  # through the layers so far
        self.computing: Callable[[], None] = ignore_computing
        """Called when the long part of a pass begins: on a CPU at its start, elsewhere once it is queued."""
        self._layers = [self._load_layer(reader, i) for i in range(config.layers)]
        if self.adapters is not None:
            for adapter in adapters or ():
                self.adapters.add(adapter.spec.number, self.adapters.read(adapter))
        self._final_norm = reader.get(FINAL_NORM).to(device)
        head = self.embedding if config.tied else reader.get(LM_HEAD).to(device)
        self._head = make_linear(head, None, batch_invariant=batch_invariant)
        dtype = self.embedding.dtype
        self.rope = RopeTable(config.rope, config.head_dim, config.max_position, dtype, device)

    def attend_by(self, attention: Attention, kv_store: KvStore | None) -> None:
        """Attend by another implementation from the next pass on; None: store keys and values by torch."""
        self.attention = attention
        self._kv_store = kv_store or TorchStore(self.config)

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can hold a pass: what is launched doesn't depend on values."""
        return self.adapters is None and not any(isinstance(layer.ffn, Experts) for layer in self._layers)

    def _load_layer(self, reader: WeightReader, i: int) -> DecoderLayer:
        p = f"model.layers.{i}."

        def linear(*names: str) -> Linear:
            weight = reader.cat(*(f"{p}{name}.weight" for name in names)).to(self._device)
            biased = reader.has(f"{p}{names[0]}.bias")
            bias = reader.cat(*(f"{p}{name}.bias" for name in names)).to(self._device) if biased else None
            made = make_linear(weight, bias, batch_invariant=self._invariant)
            if self.adapters is None:
                return made
            modules = [f"{p}{name}" for name in names]
            return self.adapters.wrap(made, modules, [reader.rows(f"{module}.weight") for module in modules])

        def stacked(parts: list[tuple[str, ...]]) -> Tensor:
            out: Tensor | None = None
            for at, names in enumerate(parts):  # on the host there is one at a time
                weight = reader.cat(*(f"{p}{name}.weight" for name in names))
                if out is None:
                    out = torch.empty(len(parts), *weight.shape, dtype=weight.dtype, device=self._device)
                out[at].copy_(weight)
            assert out is not None
            return out

        grouped = self.adapters is None and not self._invariant and groups(self._device, self.embedding.dtype)

        def norm(name: str) -> Tensor:
            return reader.get(f"{p}{name}.weight").to(self._device)

        return DecoderLayer(
            input_norm=norm("input_layernorm"),
            qkv=linear("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            q_norm=norm("self_attn.q_norm") if self.config.qk_norm else None,
            k_norm=norm("self_attn.k_norm") if self.config.qk_norm else None,
            out=linear("self_attn.o_proj"),
            post_norm=norm("post_attention_layernorm"),
            ffn=feed_forward(self.config, i, linear, self._gate, stacked if grouped else None),
            window=self.config.windows[i],
        )

    @torch.inference_mode()
    def run(self, plan: ForwardPlan, pools: Pools) -> None:
        """Pass a plan's tokens through the layers; store keys, values and the output embeds (after the last norm)."""
        self.passes += 1
        if self._device == "cpu":
            self.computing()
        if plan.scratch_pages:
            # Attention reads the unused rest of a scratch page under a mask, so no old values may remain there.
            first = pools.scratch_page
            pools.kv[:, :, first : first + plan.scratch_pages] = 0
        if self.adapters is not None:
            self.adapters.select(plan.adapter)
        self.rope.reserve(int(plan.position.max()) + 1)
        embed, position, page, slot, out_token, out_embed = pools.indices(
            plan.embed, plan.position, plan.page, plan.slot, plan.out_token, plan.out_embed
        )
        prepared = self.attention.prepare(plan.attention)
        x = self.layers(
            pools.embeds.index_select(0, embed),
            self.places(position, page, slot),
            lambda q, kv, window: self.attention.run(prepared, q, kv, window),
            pools,
        )
        if len(plan.out_token):
            if len(plan.out_token) != len(plan.embed):
                x = x.index_select(0, out_token)
            pools.embeds.index_copy_(0, out_embed, self.normed(x))
        self.computing()

    def places(self, position: Tensor, page: Tensor, slot: Tensor) -> Places:
        """Return where T tokens are stored and how they are rotated; the arguments are [T] int64."""
        return Places(page, slot, self.rope.cos[position], self.rope.sin[position])

    def layers(
        self, x: Tensor, places: Places, attend: Callable[[Tensor, Tensor, int | None], Tensor], pools: Pools
    ) -> Tensor:
        """Pass T tokens x [T, dim] through all layers; `attend` takes queries, a layer's pages and its window."""
        pointwise, more = self._kv_store.pointwise, None
        for i, layer in enumerate(self._layers):
            if more is None:
                h = pointwise.norm(x, layer.input_norm)
            else:
                x, h = pointwise.add_norm(x, more, layer.input_norm)
            q = self._store(layer, h, places, pools.kv[i])
            x, h = pointwise.add_norm(x, layer.out(attend(q, pools.kv[i], layer.window)), layer.post_norm)
            more = layer.ffn(h)
        return x if more is None else x + more

    def normed(self, x: Tensor) -> Tensor:
        """Return the last hidden states [T, dim], as the pool's embeds hold them."""
        return self._kv_store.pointwise.norm(x, self._final_norm)

    def _gate(self, gate_up: Tensor) -> Tensor:
        return self._kv_store.pointwise.gate(gate_up)

    def _store(self, layer: DecoderLayer, h: Tensor, places: Places, kv: Tensor) -> Tensor:
        """Store keys and values in the pool's layer; return rotated queries [T, heads, head_dim]."""
        c = self.config
        qkv = layer.qkv(h).view(-1, c.heads + 2 * c.kv_heads, c.head_dim)
        norms = None if layer.q_norm is None or layer.k_norm is None else (layer.q_norm, layer.k_norm)
        return self._kv_store.store(qkv, norms, places, kv)

    def embed(self, pools: Pools, embed: Ints, token: Ints) -> None:
        """Put the embeddings of tokens [N] into embeds [N] of the pool."""
        embeds, tokens = pools.indices(embed, token)
        pools.embeds.index_copy_(0, embeds, self.embedded(tokens))

    def embedded(self, token: Tensor) -> Tensor:
        """Return the embeddings [N, dim] of tokens [N] on the device."""
        taken = self.embedding.index_select(0, token)
        return taken * self._embed_scale if self.config.gemma else taken

    @torch.inference_mode()
    def logits(self, pools: Pools, embed: Ints) -> Tensor:
        """Compute the logits [N, vocab] float32 of output embeds [N] of the pool."""
        if self._device == "cpu":
            self.computing()
        logits = self.head(pools.embeds.index_select(0, pools.index(embed)))
        self.computing()
        return logits

    def head(self, hidden: Tensor) -> Tensor:
        """Return the logits [N, vocab] float32 of hidden states [N, dim]."""
        return self._head(hidden).float()
