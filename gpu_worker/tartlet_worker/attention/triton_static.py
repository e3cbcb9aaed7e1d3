"""Attention by Triton's kernels inside a CUDA graph: every row is a tile of one token, made on the device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tartlet_worker.attention.base import StaticRows
from tartlet_worker.attention.triton_kernels import RUN, TILE_FIELDS


class TritonStatic:
    """`StaticDecode` over tiles that name the rows of the graphs' page table."""

    def __init__(self, tiles: Tensor, position: Tensor, run: Callable[[Tensor, Tensor, int | None], Tensor]) -> None:
        """Take what a graph reads.

        Args:
            tiles: [N, TILE_FIELDS], of `tiles_of`.
            position: [N] int32 of the rows.
            run: attends with the tiles, as `StaticDecode.run`.
        """
        self._tiles, self._position, self._run = tiles, position, run

    def fill(self, num_pages: npt.NDArray[np.int32], position: npt.NDArray[np.int32]) -> None:
        """See `StaticDecode.fill`. The kernels read pages and positions where they are, so nothing is to be done."""

    def start(self) -> None:
        """See `StaticDecode.start`. A tile reads the columns up to its row's position."""
        self._tiles[:, 3].copy_(self._position + 1)

    def run(self, q: Tensor, kv: Tensor, window: int | None) -> Tensor:
        """See `StaticDecode.run`."""
        return self._run(q, kv, window)


def tiles_of(rows: StaticRows) -> Tensor:
    """Return tiles [N, TILE_FIELDS] of rows over the graphs' page table; `start` fills in their columns."""
    count, device = len(rows.position), rows.position.device
    number = torch.arange(count, dtype=torch.int32, device=device)
    tiles = torch.zeros(count, TILE_FIELDS, dtype=torch.int32, device=device)
    tiles[:, 0], tiles[:, 1], tiles[:, 2] = number, number, 1
    tiles[:, 4], tiles[:, 5] = -1 - number, -1
    return tiles


def reaches(most: int, longest_split: int) -> tuple[int, ...]:
    """Return limits of contexts, ascending, each eight times the one before.

    A graph launches programs for all runs of its longest context, and those of shorter ones end at once.

    Args:
        most: columns of the longest context.
        longest_split: columns up to which the runs of a context may be computed side by side.

    Example:
        >>> reaches(8192, 1 << 20), reaches(131072, 20000)
        ((512, 4096, 8192), (512, 4096, 20000))
    """
    found, reach = [], RUN
    while reach < most:
        found.append(reach)
        reach *= 8
    return tuple(dict.fromkeys(min(r, longest_split) for r in (*found, most)))
