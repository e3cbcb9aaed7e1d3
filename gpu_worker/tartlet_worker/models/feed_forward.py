"""The second half of a layer: one network for all tokens, or several experts of which each token has few."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tartlet_worker.checkpoints.model_config import ModelConfig
from tartlet_worker.models.linear import Linear


class FeedForward(Protocol):
    """Maps x [T, dim] to [T, dim]."""

    def __call__(self, x: Tensor) -> Tensor:
        """Compute all tokens."""


class Gated:
    """down(act(gate(x)) * up(x)), with SiLU, or for Gemma an approximate GELU."""

    def __init__(self, gate_up: Linear, down: Linear, *, gelu: bool) -> None:
        self._gate_up, self._down, self._gelu = gate_up, down, gelu

    def __call__(self, x: Tensor) -> Tensor:
        """See `FeedForward`."""
        gate, up = self._gate_up(x).chunk(2, -1)
        bent = F.gelu(gate, approximate="tanh") if self._gelu else F.silu(gate)
        return self._down(bent * up)


class Experts:
    """The experts that a router chooses for each token, weighted by their probabilities (Qwen3-MoE).

    The host must know how many tokens each expert has, so a pass waits for the device in each such layer, and a CUDA
    graph can't hold it. The results of a token's experts are added in the order of their probabilities.
    """

    def __init__(self, router: Linear, experts: list[Gated], chosen: int, *, normed: bool) -> None:
        """Take the parts of a layer.

        Args:
            router: dim -> number of experts.
            experts: all of them.
            chosen: experts of each token.
            normed: whether the probabilities of a token's experts are scaled to sum to 1.
        """
        self._router, self._experts, self._chosen, self._normed = router, experts, chosen, normed

    def __call__(self, x: Tensor) -> Tensor:
        """See `FeedForward`."""
        tokens, dim = x.shape
        weight, expert = self._router(x).softmax(-1, dtype=torch.float32).topk(self._chosen, -1)  # [T, chosen] each
        if self._normed:
            weight = weight / weight.sum(-1, keepdim=True)
        order = expert.reshape(-1).argsort(stable=True)  # of T * chosen uses, by expert
        counts = torch.bincount(expert.reshape(-1), minlength=len(self._experts)).tolist()
        parts = x[order // self._chosen].split(counts)
        made = [run(part) for run, part in zip(self._experts, parts, strict=True) if len(part)]
        out = torch.empty(tokens * self._chosen, dim, dtype=x.dtype, device=x.device)
        out[order] = torch.cat(made)
        return (out.view(tokens, self._chosen, dim) * weight.to(x.dtype)[:, :, None]).sum(1)


def feed_forward(config: ModelConfig, layer: int, linear: Callable[..., Linear]) -> FeedForward:
    """Make the feed-forward part of a layer.

    Args:
        config: of the model.
        layer: its number.
        linear: loads a multiplication of tensors, by their names in the layer, rows below each other.
    """

    def gated(prefix: str) -> Gated:
        return Gated(linear(f"{prefix}gate_proj", f"{prefix}up_proj"), linear(f"{prefix}down_proj"), gelu=config.gemma)

    if not config.is_sparse(layer):
        return gated("mlp.")
    experts = [gated(f"mlp.experts.{i}.") for i in range(config.experts)]
    return Experts(linear("mlp.gate"), experts, config.chosen_experts, normed=config.normed_experts)
