"""The positions of KV slots on the device, for kernels that compare them with a query's while they read pages.

Column positions of a batch are known on the host. A page's row on the device is sent again only if the batch wants
another one, so a decode step over an irregular context sends one page's row, however long the context is. Nothing else
needs to tell this cache what changed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tartlet_worker.csr import I64
from tartlet_worker.pools import FAR
from tartlet_worker.transfers import Transfers

_FIRST_PAGES = 1024


class SeenRows:
    """Rows [pages, page_size] int32 on a device: the first position that sees each slot."""

    def __init__(self, page_size: int, device: str) -> None:
        self._page_size, self._device = page_size, device
        self._transfers = Transfers(device)
        self.sent = 0  # rows so far
        self._grow(_FIRST_PAGES)

    def _grow(self, pages: int) -> None:
        self._there = np.full((pages, self._page_size), FAR, np.int32)  # what the device has
        with torch.inference_mode(mode=False):
            self.rows: Tensor = torch.from_numpy(self._there).to(self._device, copy=True)

    def place(self, command: I64, pages: npt.NDArray[np.int32], rows: npt.NDArray[np.int32]) -> set[int]:
        """Bring the rows that commands want onto the device.

        Args:
            command: [P] who wants the row.
            pages: [P] whose row.
            rows: [P, page_size] and the row.

        Returns:
            Commands that want another row than an earlier entry for the same page. Their other rows may be there or
            not.
        """
        if not len(pages):
            return set()
        if int(pages.max()) >= len(self._there):
            self._grow(1 << int(pages.max()).bit_length())
        page, first, again = np.unique(pages, return_index=True, return_inverse=True)
        differs = (rows != rows[first][again]).any(1)
        wanted = rows[first]
        changed = np.flatnonzero((self._there[page] != wanted).any(1))
        if len(changed):
            self.sent += len(changed)
            self._there[page[changed]] = wanted[changed]
            where, sent = self._transfers.up([page[changed], wanted[changed]])
            self.rows.index_copy_(0, where.long(), sent.view(-1, self._page_size))
        return set(command[differs].tolist())
