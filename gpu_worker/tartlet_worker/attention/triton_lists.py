"""The page lists that FlashInfer's graphs read, made on the device by one Triton kernel in place of nine of torch's."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256
"""Pages that a program copies at a time."""


@triton.jit(do_not_specialize=["width", "rows"])
def list_pages(
    position, pages, indptr, last_page, indices, width, rows,
    COUNTS: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """List the pages of one of `rows` rows, behind those of the rows before it.

    One compilation serves all numbers of rows with the same COUNTS.

    Args:
        position: [rows] int32, of a row's token, which is its last column.
        pages: [rows, width] int32.
        indptr: [rows + 1] int32 takes the ends of the rows' lists.
        last_page: [rows] int32 takes the columns of the rows' last pages.
        indices: int32 takes the lists.
        COUNTS: rows, up to a power of two.
    """
    row = tl.program_id(0)
    other = tl.arange(0, COUNTS)
    number = tl.load(position + other, mask=other < rows, other=0) // PAGE + 1
    begin = tl.sum(tl.where(other < row, number, 0), 0)
    mine = tl.load(position + row)
    count = mine // PAGE + 1
    if row == 0:
        tl.store(indptr, 0)
    tl.store(indptr + row + 1, begin + count)
    tl.store(last_page + row, mine % PAGE + 1)
    source = pages + row.to(tl.int64) * width
    for first in range(0, count, BLOCK):
        rank = first + tl.arange(0, BLOCK)
        listed = tl.load(source + rank, mask=rank < count, other=0)
        tl.store(indices + begin + rank, listed, mask=rank < count)


def fill(position: Tensor, pages: Tensor, indptr: Tensor, last_page: Tensor, indices: Tensor, page_size: int) -> None:
    """See `flashinfer_static.ListPages`."""
    count = len(position)
    list_pages[(count,)](
        position, pages, indptr, last_page, indices, pages.stride(0), count,
        COUNTS=1 << (count - 1).bit_length(), PAGE=page_size, BLOCK=BLOCK,
    )  # fmt: skip
