"""Linear layers: torch's multiplication, oneDNN's with packed weights, and one whose bits don't depend on the batch."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

INVARIANT_ROWS = 32
"""Rows of every multiplication in `batch_invariant` mode without the C kernels.

Libraries choose blocks by the number of rows, and the blocks decide the order of additions. oneDNN with AMX gives other
bits for 32 rows than for 33. So only a constant number of rows is safe.
"""


class Linear(Protocol):
    """y = x W^T + b."""

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply x [T, in]; return [T, out]."""


class PlainLinear:
    """torch's own multiplication; `weight` is [out, in]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        return F.linear(x, self._weight, self._bias)


class BlockedLinear:
    """torch's multiplication on blocks of exactly `INVARIANT_ROWS` rows; the last block is filled with zeros."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        rows = x.shape[0]
        out = x.new_empty(rows, self._weight.shape[0])
        for first in range(0, rows, INVARIANT_ROWS):
            block = x[first : first + INVARIANT_ROWS]
            count = block.shape[0]
            if count < INVARIANT_ROWS:
                block = torch.cat([block, x.new_zeros(INVARIANT_ROWS - count, x.shape[1])])
            out[first : first + count] = F.linear(block, self._weight, self._bias)[:count]
        return out


class PackedLinear:
    """oneDNN's multiplication with packed weights, which takes half the time of `PlainLinear` in bf16 on a CPU."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, 32)  # noqa: SLF001 - torch's only door to it
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")  # noqa: SLF001
        return out


def _packs_bf16() -> bool:
    """Return whether oneDNN multiplies in bf16 here; it refuses processors without AVX-512."""
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001


def make_linear(weight: Tensor, bias: Tensor | None, *, batch_invariant: bool) -> Linear:
    """Choose the fastest multiplication for a weight [out, in] on its device."""
    if batch_invariant:
        return BlockedLinear(weight, bias)
    if weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and _packs_bf16():
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)
