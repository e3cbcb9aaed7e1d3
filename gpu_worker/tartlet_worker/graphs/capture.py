"""Captures functions as CUDA graphs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import torch


class Capture(Protocol):
    """Turns a function that launches work over fixed tensors into one that launches the same work again."""

    def graph(self, body: Callable[[], None]) -> Callable[[], None]:
        """Run `body`, capture it, and return what replays it on the current stream."""


class CudaCapture:
    """Graphs of one device that share one pool of memory.

    Graphs may share the pool because they never run at the same time, and no graph reads what another left in it.
    Capture the largest first: smaller ones then fit into its memory.
    """

    def __init__(self, device: str) -> None:
        """Make the stream that is captured; `device` is torch's name."""
        self._device = torch.device(device)
        self._stream = torch.cuda.Stream(self._device)
        self._pool = torch.cuda.graph_pool_handle()

    def graph(self, body: Callable[[], None]) -> Callable[[], None]:
        """See `Capture`. The first run compiles kernels, loads modules and makes cuBLAS's workspace."""
        with torch.cuda.device(self._device):
            before = torch.cuda.current_stream()
            self._stream.wait_stream(before)
            with torch.cuda.stream(self._stream):
                body()
            self._stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            captured = torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local")
            try:
                with _no_garbage(), captured:
                    body()
            except BaseException:
                torch.cuda.set_stream(before)  # torch 2.11 leaves the captured one the current one
                _end(graph, torch.cuda.current_device(), self._pool)
                raise
            before.wait_stream(self._stream)
        return graph.replay


_failed: Final[list[torch.cuda.CUDAGraph]] = []
"""Graphs whose capture CUDA has refused to end: torch's allocator of host memory keeps pointers to them."""


def _end(graph: torch.cuda.CUDAGraph, device: int, pool: tuple[int, int]) -> None:
    """End what `CUDAGraph.capture_end` leaves begun where a forbidden operation has spoilt a capture.

    It then raises before it tells the allocator that the capture is over. Until that is told, memory that several
    streams use isn't freed, and `torch.cuda.empty_cache` raises; and the graph's share of its pool is never given back.
    """
    try:
        torch._C._cuda_endAllocateToPool(device, pool)  # noqa: SLF001 - `torch.cuda.use_mem_pool` ends by the same calls
    except RuntimeError:  # the capture has ended: its body raised, and no more
        return
    torch._C._cuda_releasePool(device, pool)  # noqa: SLF001
    _failed.append(graph)


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Keep Python from collecting garbage: a graph of an earlier engine that is freed now would spoil the capture."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
