"""Pages of suspended programs in the host's memory: one gathered transfer out, and one back.

On a CUDA device the memory is pinned and the transfers run on a stream of their own, beside what the device computes.
The device's stream waits only for the gathering of pages that go out, and for pages that come back.
"""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import torch

from tartlet_common.engine.step import Swaps
from tartlet_worker.csr import Ints
from tartlet_worker.pools import Pools

_TRIED = 64
"""Pages that are copied to find out how long one takes."""


class HostPages:
    """Host memory for a number of pages of an engine.

    On a CUDA device `kv` is [pages, layers, 2, kv_heads, page_size, head_dim]: a page is contiguous, so a run of pages
    is one copy. On a CPU it is as the pools' own, [layers, 2, pages, ...]: values keep their neighbours.
    """

    def __init__(self, pools: Pools, count: int) -> None:
        """Reserve memory for `count` pages. On a CPU the system maps it when it is used first."""
        self._pools = pools
        self.count = count
        self._cuda = pools.kv.is_cuda
        layers, both, _, heads, size, dim = pools.kv.shape
        shape = (count, layers, both, heads, size, dim) if self._cuda else (layers, both, count, heads, size, dim)
        self.kv = torch.empty(shape, dtype=pools.kv.dtype, pin_memory=self._cuda)
        self._position = np.full((count, size), -1, np.int32)
        self._hidden = np.zeros((count, size), np.bool_)
        self._stream = torch.cuda.Stream(pools.kv.device) if self._cuda else None

    def copy_out(self, swaps: Swaps) -> None:
        """Copy the pages that leave, before anything else changes them."""
        if not len(swaps.out_page):
            return
        pools, pages = self._pools, swaps.out_page
        gathered = pools.kv.index_select(2, pools.index(pages))
        if self._stream is None:
            self.kv.index_copy_(2, pools.index(swaps.out_host), gathered)
        else:
            gathered = gathered.permute(2, 0, 1, 3, 4, 5).contiguous()
            self._stream.wait_stream(torch.cuda.current_stream(gathered.device))
            with torch.cuda.stream(self._stream):
                for first, last in _runs(swaps.out_host):
                    to = int(swaps.out_host[first])
                    self.kv[to : to + last - first].copy_(gathered[first:last], non_blocking=True)
            gathered.record_stream(self._stream)
        self._position[swaps.out_host] = pools.position[pages]
        self._hidden[swaps.out_host] = pools.hidden[pages]

    def copy_in(self, swaps: Swaps) -> None:
        """Copy pages back into pages that were cleared."""
        if not len(swaps.in_page):
            return
        pools, pages = self._pools, swaps.in_page
        if self._stream is None:
            come = self.kv.index_select(2, pools.index(swaps.in_host))
        else:
            come = torch.empty((len(pages), *self.kv.shape[1:]), dtype=self.kv.dtype, device=pools.kv.device)
            self._stream.wait_stream(torch.cuda.current_stream(come.device))
            with torch.cuda.stream(self._stream):
                for first, last in _runs(swaps.in_host):
                    at = int(swaps.in_host[first])
                    come[first:last].copy_(self.kv[at : at + last - first], non_blocking=True)
            torch.cuda.current_stream(come.device).wait_stream(self._stream)
            come.record_stream(self._stream)
            come = come.permute(1, 2, 0, 3, 4, 5)
        pools.kv.index_copy_(2, pools.index(pages), come)
        pools.position[pages] = self._position[swaps.in_host]
        pools.hidden[pages] = self._hidden[swaps.in_host]
        pools.refresh(pages)

    def measure(self) -> int:
        """Return the nanoseconds to bring one of many pages out or back; call this before the engine is used."""
        ids = np.arange(min(_TRIED, self.count, self._pools.sizes.num_pages), dtype=np.int32)
        both = Swaps(ids, ids, ids, ids)
        took_ns = []
        for _ in range(3):
            start = time.perf_counter_ns()
            self.copy_out(both)
            self.copy_in(both)
            if self._cuda:
                torch.cuda.synchronize(self._pools.kv.device)
            took_ns.append(time.perf_counter_ns() - start)
        self._pools.clear_pages(ids)
        return max(1, min(took_ns) // (2 * len(ids)))


def _runs(ids: Ints) -> list[tuple[int, int]]:
    """Return the ranges of `ids` whose numbers follow one another."""
    cuts = [0, *(np.flatnonzero(np.diff(ids) != 1) + 1).tolist(), len(ids)]
    return [*pairwise(cuts)]
