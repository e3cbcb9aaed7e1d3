"""Pages of suspended programs in the host's memory: gathered transfers out, and back.

On a CUDA device the memory is pinned, and the transfers run on a stream of their own, beside what the device computes.
A step that brings pages back doesn't wait for them, and neither does the host. The first step that uses one of these
pages waits on the device.

Pages go and come in portions, each through a buffer on the device that is there from the start: a worker brings pages
out when the device is full, so that is no time to ask the device for memory.
"""

from __future__ import annotations

import time
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from tartlet_common.engine.step import EMPTY_I32, CopyKvPage, Forward, Step, Swaps
from tartlet_worker.copy_stream import Arrival, CopyStream, CudaCopies, pin
from tartlet_worker.csr import Ints
from tartlet_worker.page_tables import PageTables
from tartlet_worker.pools import Pools

PORTION = 64 << 20
"""Bytes of the pages that go through a buffer at a time, at most, or one page where a page is larger."""
_TRIED = 64
"""Pages that are copied to find out how long one takes."""


def portion_pages(count: int, page_bytes: int) -> int:
    """Return the pages of a portion, for `count` host pages of `page_bytes`.

    Example:
        >>> portion_pages(1000, 2 << 20), portion_pages(5, 2 << 20), portion_pages(5, 1 << 30)
        (32, 5, 1)
    """
    return min(count, max(1, PORTION // page_bytes))


def buffer_bytes(count: int, page_bytes: int) -> int:
    """Return the bytes on a CUDA device of the two buffers, out and back, for `count` host pages of `page_bytes`."""
    return 2 * portion_pages(count, page_bytes) * page_bytes


class HostPages:
    """Host memory for a number of pages of an engine.

    With a stream of copies `kv` is [pages, layers, 2, kv_heads, page_size, head_dim]: a page is contiguous, so a run of
    pages is one copy. On a CPU it is as the pools' own, [layers, 2, pages, ...]: values keep their neighbours.
    """

    def __init__(self, pools: Pools, count: int, copies: CopyStream | None = None) -> None:
        """Reserve memory for `count` pages. On a CPU the system maps it when it is used first.

        `copies`: runs beside the computing; None: that of the pools' device, if it is a CUDA device.
        """
        self._pools = pools
        self.count = count
        cuda = pools.kv.is_cuda
        self._copies = CudaCopies(pools.kv.device) if copies is None and cuda else copies
        layers, both, _, heads, size, dim = pools.kv.shape
        apart = self._copies is not None
        shape = (count, layers, both, heads, size, dim) if apart else (layers, both, count, heads, size, dim)
        self.kv = torch.empty(shape, dtype=pools.kv.dtype)
        if cuda:
            pin(self.kv, self)
        self._portion = portion_pages(count, pools.kv[:, :, 0].nbytes)
        buffers = (self._portion, *shape[1:]) if apart else (0,)
        self._leaving = torch.empty(buffers, dtype=pools.kv.dtype, device=pools.kv.device)
        self._come = torch.empty_like(self._leaving)
        self._left: Arrival | None = None  # of what went through `_leaving` last
        self._position = np.full((count, size), -1, np.int32)
        self._hidden = np.zeros((count, size), np.bool_)
        self._coming: list[tuple[Ints, Arrival]] = []  # pages that may not be there yet

    # ---- out ------------------------------------------------------------------------------------------------------

    def copy_out(self, swaps: Swaps) -> None:
        """Copy the pages that leave, before anything else changes them."""
        if not len(swaps.out_page):
            return
        pools, pages = self._pools, swaps.out_page
        self.wait_for(pages)
        if self._copies is None:
            self.kv.index_copy_(2, pools.index(swaps.out_host), pools.kv.index_select(2, pools.index(pages)))
        else:
            for first in range(0, len(pages), self._portion):
                part = slice(first, first + self._portion)
                self._send(pages[part], swaps.out_host[part], self._copies)
        self._position[swaps.out_host] = pools.position[pages]
        self._hidden[swaps.out_host] = pools.hidden[pages]

    def _send(self, pages: Ints, to: Ints, copies: CopyStream) -> None:
        """Gather a portion once the one before has left the buffer, and launch its copies to the host."""
        if self._left is not None and not self._left.done():
            self._left.hold_computing()
        gathered = self._leaving[: len(pages)]
        by_page = self._pools.kv.permute(2, 0, 1, 3, 4, 5)
        torch.index_select(by_page, 0, self._pools.index(pages), out=gathered)

        def send() -> None:
            for first, last in _runs(to):
                at = int(to[first])
                self.kv[at : at + last - first].copy_(gathered[first:last], non_blocking=True)

        self._left = copies.launch(send, after_computing=True)

    # ---- back -----------------------------------------------------------------------------------------------------

    def copy_in(self, swaps: Swaps) -> None:
        """Copy pages back into pages that were cleared. `wait_for` comes before these are used."""
        if not len(swaps.in_page):
            return
        pools, pages = self._pools, swaps.in_page
        if self._copies is None:
            pools.kv.index_copy_(2, pools.index(pages), self.kv.index_select(2, pools.index(swaps.in_host)))
        else:
            self._coming.append((pages, self._receive(swaps.in_host, pools.index(pages), self._copies)))
        pools.position[pages] = self._position[swaps.in_host]
        pools.hidden[pages] = self._hidden[swaps.in_host]
        pools.refresh(pages)

    def _receive(self, at: Ints, into: torch.Tensor, copies: CopyStream) -> Arrival:
        """Launch the copies from the host, and once the pages are cleared, the writing of the pages.

        The first portion comes before the pages are cleared. The stream alone uses the buffer, so each portion follows
        the writing of the one before.
        """
        kv, size = self._pools.kv, self._portion

        def receive(start: int) -> None:
            for first, last in _runs(at[start : start + size]):
                host = int(at[start + first])
                self._come[first:last].copy_(self.kv[host : host + last - first], non_blocking=True)

        def write() -> None:
            for start in range(0, len(at), size):
                if start:
                    receive(start)
                pages = into[start : start + size]
                kv.index_copy_(2, pages, self._come[: len(pages)].permute(1, 2, 0, 3, 4, 5))
            _used_here(into)

        copies.launch(partial(receive, 0), after_computing=False)
        return copies.launch(write, after_computing=True)

    # ---- steps that use pages ---------------------------------------------------------------------------------------

    def wait_for(self, pages: Ints) -> None:
        """Let what is computed from now on wait for the pages among these that are still coming."""
        still = []
        for coming, there in self._coming:
            if there.done():
                continue
            if np.isin(coming, pages).any():
                there.hold_computing()
            else:
                still.append((coming, there))
        self._coming = still

    def wait_for_step(self, step: Step, tables: PageTables) -> None:
        """Let a step wait for the pages that its batches use, if any is still coming. The tables are the step's."""
        if self._coming:
            self.wait_for(_pages_used(step, tables))

    def wait_for_all(self) -> None:
        """Let what is computed from now on wait for all pages."""
        for _, there in self._coming:
            there.hold_computing()
        self._coming.clear()

    # ---- costs ------------------------------------------------------------------------------------------------------

    def measure(self) -> int:
        """Return the nanoseconds to bring one of many pages out or back; call this before the engine is used."""
        ids = np.arange(min(_TRIED, self.count, self._pools.sizes.num_pages), dtype=np.int32)
        both = Swaps(ids, ids, ids, ids)
        took_ns = []
        for _ in range(3):
            start = time.perf_counter_ns()
            self.copy_out(both)
            self.copy_in(both)
            self.wait_for_all()
            if self.kv.is_pinned():
                torch.cuda.synchronize(self._pools.kv.device)
            took_ns.append(time.perf_counter_ns() - start)
        self._pools.clear_pages(ids)
        return max(1, min(took_ns) // (2 * len(ids)))


def _pages_used(step: Step, tables: PageTables) -> Ints:
    """Return the pages whose keys and values the batches of a step read or write."""
    used: list[npt.NDArray[np.int32]] = [EMPTY_I32]
    for batch in step.batches:
        if isinstance(batch, Forward):
            used += [batch.ikv, batch.okv]
            used += [tables.rows[table, : tables.count[table]] for table in batch.table.tolist() if table >= 0]
        elif isinstance(batch, CopyKvPage):
            used += [batch.src, batch.dst]
    return np.concatenate(used)


def _used_here(tensor: torch.Tensor) -> None:
    """Keep a tensor's memory until the current stream has done what was launched on it so far."""
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))


def _runs(ids: Ints) -> list[tuple[int, int]]:
    """Return the ranges of `ids` whose numbers follow one another."""
    cuts = [0, *(np.flatnonzero(np.diff(ids) != 1) + 1).tolist(), len(ids)]
    return [*pairwise(cuts)]
