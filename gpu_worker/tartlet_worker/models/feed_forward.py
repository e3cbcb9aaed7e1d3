"""The second half of a layer: one network for all tokens, or several experts of which each token has few."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tartlet_worker.checkpoints.model_config import ModelConfig
from tartlet_worker.models.linear import Linear

_ALIGNED: Final = 8
"""Values of bf16 between rows of a grouped multiplication: its kernel takes rows at multiples of 16 bytes."""


class FeedForward(Protocol):
    """Maps x [T, dim] to [T, dim]."""

    def __call__(self, x: Tensor) -> Tensor:
        """Compute all tokens."""


class Gated:
    """down(act(gate(x)) * up(x)); `gate` is `Pointwise.gate`."""

    def __init__(self, gate_up: Linear, down: Linear, gate: Callable[[Tensor], Tensor]) -> None:
        self._gate_up, self._down, self._gate = gate_up, down, gate

    def __call__(self, x: Tensor) -> Tensor:
        """See `FeedForward`."""
        return self._down(self._gate(self._gate_up(x)))


class Experts:
    """The experts that a router chooses for each token, weighted by their probabilities (Qwen3-MoE).

    The host must know how many tokens each expert has, so a pass waits for the device in each such layer, and a CUDA
    graph can't hold it. The results of a token's experts are added in the order of their probabilities.
    """

    def __init__(self, router: Router, experts: list[Gated]) -> None:
        """Take the parts of a layer."""
        self._router, self._experts = router, experts

    def __call__(self, x: Tensor) -> Tensor:
        """See `FeedForward`."""
        chosen = self._router(x)
        counts = torch.bincount(chosen.expert, minlength=len(self._experts)).tolist()
        parts = x[chosen.token].split(counts)
        made = [run(part) for run, part in zip(self._experts, parts, strict=True) if len(part)]
        return chosen.summed(torch.cat(made))


class GroupedExperts:
    """What `Experts` computes, by one multiplication for all experts, whose number of tokens the device alone knows.

    No shape depends on the router's choice, so a CUDA graph can hold it.
    """

    def __init__(self, router: Router, gate_up: Tensor, down: Tensor) -> None:
        """Take the parts of a layer.

        Args:
            router: of E experts.
            gate_up: [E, 2 * ffn, dim] the experts' weights, the gate's rows above the others.
            down: [E, dim, ffn]
        """
        self._router, self._gate_up, self._down = router, gate_up.transpose(1, 2), down.transpose(1, 2)
        self._numbers = torch.arange(len(gate_up), device=gate_up.device)

    def __call__(self, x: Tensor) -> Tensor:
        """See `FeedForward`."""
        chosen = self._router(x)
        ends = torch.searchsorted(chosen.expert, self._numbers, right=True, out_int32=True)
        gate, up = F.grouped_mm(x[chosen.token], self._gate_up, offs=ends).chunk(2, -1)
        return chosen.summed(F.grouped_mm(F.silu(gate) * up, self._down, offs=ends))


@dataclass(frozen=True, slots=True)
class Chosen:
    """The T * chosen uses of experts by T tokens, sorted by expert."""

    expert: Tensor  # [T * chosen] ascending
    token: Tensor  # [T * chosen] of a use
    order: Tensor  # [T * chosen] where a use stands if they are sorted by token, then by probability
    weight: Tensor  # [T, chosen] float32

    def summed(self, made: Tensor) -> Tensor:
        """Return [T, dim], the weighted sums of the uses' results [T * chosen, dim]."""
        out = torch.empty_like(made).index_copy_(0, self.order, made)
        return (out.view(*self.weight.shape, -1) * self.weight.to(made.dtype)[:, :, None]).sum(1)


class Router:
    """Chooses the most probable experts of each token."""

    def __init__(self, linear: Linear, chosen: int, *, normed: bool) -> None:
        """Take the parts.

        Args:
            linear: dim -> number of experts.
            chosen: experts of each token.
            normed: whether the probabilities of a token's experts are scaled to sum to 1.
        """
        self._linear, self._chosen, self._normed = linear, chosen, normed

    def __call__(self, x: Tensor) -> Chosen:
        """Choose for tokens [T, dim]."""
        weight, expert = self._linear(x).softmax(-1, dtype=torch.float32).topk(self._chosen, -1)  # [T, chosen] each
        if self._normed:
            weight = weight / weight.sum(-1, keepdim=True)
        ascending, order = expert.reshape(-1).sort(stable=True)
        return Chosen(ascending, order // self._chosen, order, weight)


def groups(device: str, dtype: torch.dtype) -> bool:
    """Return whether torch multiplies groups of rows on this device without asking the host how many there are.

    torch has such kernels for the capabilities 9.x and 10.x. Elsewhere it does the same with a loop on the host. So do
    `Experts`, which leave out experts without tokens.
    """
    if not device.startswith("cuda") or dtype != torch.bfloat16:
        return False
    return torch.cuda.get_device_capability(device)[0] in (9, 10)


def feed_forward(
    config: ModelConfig,
    layer: int,
    linear: Callable[..., Linear],
    gate: Callable[[Tensor], Tensor],
    stacked: Callable[[list[tuple[str, ...]]], Tensor] | None = None,
) -> FeedForward:
    """Make the feed-forward part of a layer.

    Args:
        config: of the model.
        layer: its number.
        linear: loads a multiplication of tensors, by their names in the layer, rows below each other.
        gate: see `Pointwise.gate`.
        stacked: loads such tensors of several multiplications as one, [multiplications, out, in]; None: each expert is
            to be a multiplication of its own.
    """

    def gated(prefix: str) -> Gated:
        return Gated(linear(f"{prefix}gate_proj", f"{prefix}up_proj"), linear(f"{prefix}down_proj"), gate)

    if not config.is_sparse(layer):
        return gated("mlp.")
    router = Router(linear("mlp.gate"), config.chosen_experts, normed=config.normed_experts)
    prefixes = [f"mlp.experts.{i}." for i in range(config.experts)]
    if stacked is None or config.dim % _ALIGNED or config.expert_ffn % _ALIGNED:
        return Experts(router, [gated(prefix) for prefix in prefixes])
    gate_up = stacked([(f"{prefix}gate_proj", f"{prefix}up_proj") for prefix in prefixes])
    return GroupedExperts(router, gate_up, stacked([(f"{prefix}down_proj",) for prefix in prefixes]))
