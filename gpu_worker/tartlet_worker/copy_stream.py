"""A stream of copies beside the stream that computes, and the events by which the two wait for each other.

Nothing here makes the host wait. Tests on a CPU put a recorder in the place of `CudaCopies`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Protocol

import torch


class Arrival(Protocol):
    """The moment when all that was launched beside the computing so far has ended."""

    def done(self) -> bool:
        """Return whether the host knows that it has ended."""

    def hold_computing(self) -> None:
        """Let what is computed from now on wait for it, on the device."""


class CopyStream(Protocol):
    """Runs work beside what the device computes, in the order in which it was launched."""

    def launch(self, work: Callable[[], None], *, after_computing: bool) -> Arrival:
        """Launch work, and return its end.

        Args:
            work: launches copies and kernels on the current stream.
            after_computing: whether the work waits for all that has been launched to be computed so far.
        """


class _Event:
    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event()
        self._device = device
        self._event.record()

    def done(self) -> bool:
        return bool(self._event.query())

    def hold_computing(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._event)


def pin(tensor: torch.Tensor, owner: object) -> None:
    """Pin a tensor of the host's memory, so that copies from and to it run beside the computing, while `owner` lives.

    torch's own pinned tensors take a power of two of bytes: one of 20 GiB would pin 32 GiB.

    Raises:
        MemoryError: CUDA can't pin that much.
    """
    error = int(torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0))
    if error:
        raise MemoryError(f"{tensor.nbytes} bytes of the host's memory can't be pinned: CUDA error {error}")
    weakref.finalize(owner, _unpin, tensor).atexit = False  # the end of a process unpins by itself


def _unpin(tensor: torch.Tensor) -> None:
    torch.cuda.synchronize()  # copies may still run
    torch.cuda.cudart().cudaHostUnregister(tensor.data_ptr())


class CudaCopies:
    """`CopyStream` on a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        """Make the stream."""
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def launch(self, work: Callable[[], None], *, after_computing: bool) -> Arrival:
        """See `CopyStream`. Memory that the work allocates is the stream's own, so no computing has it before."""
        if after_computing:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            work()
            return _Event(self._device)
