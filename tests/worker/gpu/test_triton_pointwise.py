"""Triton's kernels beside attention, interpreted or compiled, against torch's operations."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from tartlet_worker.attention.flashinfer_static import ListPages, list_by_torch
from tartlet_worker.attention.triton_lists import fill
from tartlet_worker.checkpoints.model_config import parse_config
from tartlet_worker.models.pointwise import TorchPointwise
from tartlet_worker.models.triton_pointwise import TritonPointwise
from tests.worker.families import CONFIGS
from tests.worker.seeds import rng as fresh

CUDA = "cuda" if torch.cuda.is_available() else "cpu"
DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else CUDA
BITS = {torch.float32: 2e-6, torch.bfloat16: 2**-7}
"""The largest difference over the number: an order of additions, and one unit in the last place."""


@pytest.mark.parametrize("dtype", list(BITS))
@pytest.mark.parametrize(
    ("family", "rows", "dim"), [("qwen3-norms", 1, 96), ("gemma", 5, 64), ("qwen3-norms", 7, 1000)]
)
def test_norms_sums_and_gates_are_those_of_torch(family: str, rows: int, dim: int, dtype: torch.dtype) -> None:
    config = parse_config(CONFIGS[family])
    mine, theirs = TritonPointwise(config), TorchPointwise(config)
    rng = fresh(f"pointwise {family} {dim} {dtype}")
    x, more, weight = (
        torch.from_numpy(rng.standard_normal(shape)).to(DEVICE, dtype) for shape in ((rows, dim), (rows, dim), (dim,))
    )
    bits = BITS[dtype]
    torch.testing.assert_close(mine.norm(x, weight), theirs.norm(x, weight), rtol=bits, atol=bits)
    (total, normed), (true_total, true_normed) = (made.add_norm(x, more, weight) for made in (mine, theirs))
    assert torch.equal(total, true_total)  # one addition, rounded once
    torch.testing.assert_close(normed, true_normed, rtol=bits, atol=bits)
    torch.testing.assert_close(mine.gate(x), theirs.gate(x), rtol=bits, atol=bits)


def test_a_row_s_bits_do_not_depend_on_the_other_rows() -> None:
    pointwise = TritonPointwise(parse_config(CONFIGS["qwen3-norms"]))
    x, weight = torch.randn(9, 300, device=DEVICE), torch.randn(300, device=DEVICE)
    assert torch.equal(pointwise.norm(x, weight)[4:5], pointwise.norm(x[4:5], weight))


@pytest.mark.parametrize("size", [1, 5, 16])
def test_pages_are_listed_as_torch_lists_them(size: int) -> None:
    rng = fresh(f"page lists {size}")
    position = rng.integers(0, 700 * size, 11).astype(np.int32)
    position[3] = 0
    pages = rng.integers(0, 9999, (11, 700)).astype(np.int32)
    total = int((position // size + 1).sum())
    said = []
    at, rows = (torch.from_numpy(array).to(DEVICE) for array in (position, pages))
    listers: tuple[ListPages, ...] = (fill, list_by_torch)
    for lister in listers:
        indptr, last, indices = (torch.zeros(n, dtype=torch.int32, device=DEVICE) for n in (12, 11, total))
        lister(at, rows, indptr, last, indices, size)
        said.append([part.cpu() for part in (indptr, last, indices)])
    for got, want in zip(*said, strict=True):
        assert torch.equal(got, want)
