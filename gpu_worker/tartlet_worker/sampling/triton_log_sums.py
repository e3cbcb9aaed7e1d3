"""The logarithm of the sum of exponentials of rows of logits by one Triton kernel.

A kernel's program reads one row in blocks of the same size, from its first number on. So the bits of a row's sum don't
depend on the other rows. torch's reduction splits a row by how many rows there are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
"""Numbers of a row that a program reads at a time."""


@triton.jit(do_not_specialize=["vocab"])
def sum_rows(logits, sums, stride, vocab, BLOCK: tl.constexpr):
    """Write log(sum(exp(row))) of one row; logits are float32 [rows, vocab], rows `stride` apart, and sums [rows]."""
    row = tl.program_id(0)
    begin = logits + row.to(tl.int64) * stride
    lane = tl.arange(0, BLOCK)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for low in range(0, vocab, BLOCK):
        value = tl.load(begin + low + lane, mask=low + lane < vocab, other=float("-inf"))
        best = tl.maximum(top, value)
        safe = tl.where(tl.abs(best) == float("inf"), 0.0, best)
        total = total * tl.exp(top - safe) + tl.exp(value - safe)
        top = best
    best = tl.max(top, 0)
    safe = tl.where(tl.abs(best) == float("inf"), 0.0, best)
    whole = tl.sum(total * tl.exp(top - safe), 0)
    none = whole == 0.0
    tl.store(sums + row, tl.where(none, float("-inf"), tl.log(tl.where(none, 1.0, whole)) + safe))


def log_sums(logits: Tensor) -> Tensor:
    """See `base.LogSums`."""
    logits = logits.contiguous()
    rows, vocab = logits.shape
    sums = torch.empty(rows, dtype=torch.float32, device=logits.device)
    if rows:
        sum_rows[(rows,)](logits, sums, logits.stride(0), vocab, BLOCK=BLOCK, num_warps=8)
    return sums
