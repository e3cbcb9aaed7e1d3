"""How the memory of guests is counted: reserved in whole where a launch names a limit, else as the guest grows.

wasmtime's C API doesn't tell how large the memory of a component is. The kernel counts the private writable bytes of a
process, and a memory becomes writable as it grows. So the difference over one poll is what the guest grew by. Guests
that are polled at the same time are each charged with all of it: the one that grew may be any of them.
"""

from __future__ import annotations

import os
from typing import Protocol

from tartlet_common.errors.registry import MemoryBudgetExceeded
from tartlet_runtime.budget.ledger import Ledger, Use

GRAIN_BYTES = 1 << 16
"""A page of WebAssembly: less is the host's own, not a guest's growth."""
START_BYTES = 4 << 20
"""What a Python guest has of its own at its start; the rest of its memory is mapped from a file and shared."""
_DATA_FIELD = 5  # of statm
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


_MAPPED_SHARE = 0.9
"""Growth of less than this share of what a first poll maps isn't the mapping."""


class Meter(Protocol):
    """Tells how many bytes the process may write to."""

    def read(self) -> int:
        """Return bytes."""


class KernelMeter:
    """The kernel's count, from /proc/self/statm: a read takes 1.4 us."""

    def __init__(self) -> None:
        """Open the file."""
        self._file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> int:
        """Return the private writable bytes of this process."""
        return int(os.pread(self._file, 128, 0).split()[_DATA_FIELD]) * _PAGE_BYTES

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class Growth:
    """The memory of one guest whose launch named no limit: what it has taken beyond its reservation.

    Before the guest computes, `open` takes all that it may grow by in one slice and is free. `settle` gives back what
    the guest did not use. So guests that compute at the same time never take the same bytes.
    """

    __slots__ = (
        "_before",
        "_extra",
        "_is_open",
        "_ledger",
        "_limit",
        "_mapped",
        "_meter",
        "_reserved",
        "_size",
        "refused",
    )

    def __init__(
        self,
        ledger: Ledger,
        meter: Meter,
        reserved_bytes: int,
        limit_bytes: int,
        start_bytes: int,
        *,
        mapped_bytes: int = 0,
    ) -> None:
        """Begin with `start_bytes`, of `reserved_bytes` that the launch has taken.

        Args:
            ledger: of the process.
            meter: of the process.
            reserved_bytes: what the launch has taken.
            limit_bytes: the most.
            start_bytes: what the guest has at its start.
            mapped_bytes: what its first poll maps, the memory that it starts with; 0 if that is mapped already.
        """
        self._ledger = ledger
        self._meter = meter
        self._reserved = reserved_bytes
        self._limit = limit_bytes
        self._size = start_bytes
        self._mapped = mapped_bytes
        self._extra = 0  # taken beyond the reservation
        self._before = 0
        self._is_open = False
        self.refused = False  # the last slice had less than the limit

    def open(self) -> int:
        """Take what the next slice may need; return how large the guest may become, in bytes."""
        if not self._is_open:
            self._is_open = True
            wanted = self._limit - self._reserved - self._extra
            granted = self._ledger.grow(Use.PROGRAMS, wanted)
            self._extra += granted
            self.refused = granted < wanted
            self._before = self._meter.read()
        return self._reserved + self._extra

    def settle(self, size_bytes: int | None = None) -> None:
        """Keep what the guest has grown by, give the rest back. `size_bytes`: its exact size, where that is known."""
        if not self._is_open:
            return
        self._is_open = False
        if size_bytes is None:
            grown = self._meter.read() - self._before
            if (
                self._mapped and grown >= _MAPPED_SHARE * self._mapped
            ):  # else the memory was mapped for an earlier guest
                grown -= self._mapped
            self._mapped = 0
            if grown >= GRAIN_BYTES:
                self._size = min(self._limit, self._size + grown)
        else:
            self._size = size_bytes
        kept = min(self._extra, max(0, self._size - self._reserved))
        if self._extra > kept:
            self._ledger.give(Use.PROGRAMS, self._extra - kept)
        self._extra = kept

    def close(self) -> None:
        """Give everything back: the guest has ended."""
        self._is_open = False
        self._ledger.give(Use.PROGRAMS, self._extra)
        self._extra = 0

    def refusal(self) -> MemoryBudgetExceeded:
        """Return the error of the guest, which was refused memory below its limit."""
        return self._ledger.refusal(Use.PROGRAMS, GRAIN_BYTES)
