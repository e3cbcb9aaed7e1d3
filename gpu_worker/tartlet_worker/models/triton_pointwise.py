"""Norms, sums and gates as one Triton kernel each, in place of up to nine of torch's.

On a GPU a decode step of a small model is launches more than arithmetic, and each of torch's operations is one. The
kernels round to the model's dtype after the same operations as `pointwise.TorchPointwise`, so both give the same
numbers up to the order in which a norm adds its squares. A row's order doesn't depend on the other rows of its batch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tartlet_worker.checkpoints.model_config import ModelConfig
from tartlet_worker.models.pointwise import TorchPointwise

GATED = 1024
"""Numbers of a row that one program of `gate_rows` takes."""
_WARP_NUMBERS = 256
"""Numbers of a row for each warp of a norm, at least."""


@triton.jit(do_not_specialize=["count"])
def norm_rows(
    x, more, weight, total, normed, eps, count,
    DIM: tl.constexpr, DIMS: tl.constexpr, ADD: tl.constexpr, SHIFT: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Norm ROWS rows of x [count, DIM], or with ADD of x + more, which goes to `total`.

    Args:
        weight: [DIM]; with SHIFT a row is scaled by 1 + weight, before it is rounded.
        normed: [count, DIM] takes the norms.
        DIMS: DIM, up to a power of two.
    """
    KIND = normed.dtype.element_ty
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    dim = tl.arange(0, DIMS)[None, :]
    at = row[:, None] * DIM + dim
    there = (row < count)[:, None] & (dim < DIM)
    wide = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    if ADD:
        wide = (wide + tl.load(more + at, mask=there, other=0.0).to(tl.float32)).to(KIND).to(tl.float32)
        tl.store(total + at, wide.to(KIND), mask=there)
    scale = tl.rsqrt(tl.sum(wide * wide, 1) / DIM + eps)[:, None]
    weigh = tl.load(weight + dim, mask=dim < DIM, other=0.0).to(tl.float32)
    if SHIFT:  # noqa: SIM108 - a kernel's branch, taken while it is compiled
        result = wide * scale * (1.0 + weigh)
    else:
        result = weigh * (wide * scale).to(KIND).to(tl.float32)
    tl.store(normed + at, result.to(KIND), mask=there)


@triton.jit(do_not_specialize=["count"])
def gate_rows(gate_up, out, count, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Write silu(gate) * up of BLOCK numbers of ROWS rows; gate_up is [count, 2 WIDTH], out [count, WIDTH]."""
    KIND = out.dtype.element_ty
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    there = (row < count) & (column < WIDTH)
    source = gate_up + row * 2 * WIDTH + column
    gate = tl.load(source, mask=there, other=0.0).to(tl.float32)
    up = tl.load(source + WIDTH, mask=there, other=0.0).to(tl.float32)
    bent = (gate / (1.0 + tl.exp(-gate))).to(KIND).to(tl.float32)
    tl.store(out + row * WIDTH + column, (bent * up).to(KIND), mask=there)


class TritonPointwise:
    """One kernel for each operation, on a CUDA device or in Triton's interpreter. GELU is torch's."""

    def __init__(self, config: ModelConfig) -> None:
        """Choose what the model's family computes."""
        self._eps, self._gemma = config.norm_eps, config.gemma
        self._plain = TorchPointwise(config)

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """See `Pointwise.norm`."""
        return self._rows(x, None, weight)[1]

    def add_norm(self, x: Tensor, more: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """See `Pointwise.add_norm`."""
        return self._rows(x, more, weight)

    def _rows(self, x: Tensor, more: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
        x = x.contiguous()
        normed = torch.empty_like(x)
        total = x if more is None else torch.empty_like(x)
        count, dim = x.shape
        if count:
            rows, dims = _rows_a_program(x), 1 << (dim - 1).bit_length()
            norm_rows[(-(-count // rows),)](
                x, x if more is None else more.contiguous(), weight, total, normed, self._eps, count, DIM=dim,
                DIMS=dims, ADD=more is not None, SHIFT=self._gemma, ROWS=rows,
                num_warps=min(16, max(1, dims // _WARP_NUMBERS)),
            )  # fmt: skip
        return total, normed

    def gate(self, gate_up: Tensor) -> Tensor:
        """See `Pointwise.gate`."""
        if self._gemma:
            return self._plain.gate(gate_up)
        gate_up = gate_up.contiguous()
        count, width = len(gate_up), gate_up.shape[1] // 2
        out = torch.empty(count, width, dtype=gate_up.dtype, device=gate_up.device)
        if count:
            rows, block = _rows_a_program(gate_up), min(GATED, 1 << (width - 1).bit_length())
            gate_rows[-(-count // rows), -(-width // block)](gate_up, out, count, WIDTH=width, BLOCK=block, ROWS=rows)
        return out


def _rows_a_program(x: Tensor) -> int:
    """Return one for a device. In Triton's interpreter programs run in turn, so there one takes all rows."""
    return 1 if x.device.type == "cuda" else 1 << (len(x) - 1).bit_length()
