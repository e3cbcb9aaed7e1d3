"""What a layer computes number by number between its multiplications: norms, sums and the gate of its network."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tartlet_worker.checkpoints.model_config import ModelConfig


class Pointwise(Protocol):
    """The operations of one model. All round to the model's dtype in the same places."""

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Scale the rows of x [T, dim] to unit mean square and by a weight [dim]."""

    def add_norm(self, x: Tensor, more: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return x + more, and the norm of that sum; x and more are [T, dim]."""

    def gate(self, gate_up: Tensor) -> Tensor:
        """Return act(gate) * up [T, n] of gate_up [T, 2 n], whose first half is the gate."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale x [..., D] to unit mean square, in float32; round to x's dtype, then apply the weight [D]."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def shifted_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale x [..., D] to unit mean square and by 1 + weight [D], in float32; then round to x's dtype (Gemma)."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * (1 + weight.float())).to(x.dtype)


class TorchPointwise:
    """torch's operations, on any device."""

    def __init__(self, config: ModelConfig) -> None:
        """Choose what the model's family computes."""
        self._eps, self._gelu = config.norm_eps, config.gemma
        self._norm = shifted_rms_norm if config.gemma else rms_norm

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """See `Pointwise.norm`."""
        return self._norm(x, weight, self._eps)

    def add_norm(self, x: Tensor, more: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """See `Pointwise.add_norm`."""
        x = x + more
        return x, self._norm(x, weight, self._eps)

    def gate(self, gate_up: Tensor) -> Tensor:
        """See `Pointwise.gate`: SiLU, or for Gemma an approximate GELU."""
        gate, up = gate_up.chunk(2, -1)
        return (F.gelu(gate, approximate="tanh") if self._gelu else F.silu(gate)) * up
