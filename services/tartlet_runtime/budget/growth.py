"""How the memory of guests is counted: reserved in whole where a launch names a limit, else as the guest grows.

wasmtime's C API doesn't tell how large the memory of a component is. The kernel counts the private writable bytes of a
process, and a memory becomes writable as it grows. So the difference over one poll is what the guest grew by. Guests
that are polled at the same time share one difference: the first that is settled is charged with it, and nobody else.
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


class Charges:
    """Which bytes of the process some guest was charged with already.

    Example:
        >>> readings = iter([100, 100, 170, 190])
        >>> charges = Charges(type("Readings", (), {"read": lambda _: next(readings)})())
        >>> one, other = charges.begin(), charges.begin()
        >>> charges.grown(one), charges.grown(other)
        (70, 20)
    """

    def __init__(self, meter: Meter) -> None:
        """Begin with no charges."""
        self._meter = meter
        self._charged = 0  # bytes up to which growth was charged
        self._mapped = 0  # bytes that come with guests and aren't growth
        self._polled = 0

    def begin(self, mapped_bytes: int = 0) -> int:
        """Return the bytes of the process before a guest is polled; `mapped_bytes` come with the guest itself."""
        self._polled += 1
        self._mapped += mapped_bytes
        return self._read()

    def grown(self, since: int) -> int:
        """Return the bytes that were added since a guest began and charged to nobody, and charge them; at least 0."""
        before = max(since, self._charged)
        self._charged = self._read()
        grown = max(0, self._charged - before)
        mapped = min(grown, self._mapped)
        self._mapped -= mapped
        self.end()
        return grown - mapped

    def end(self) -> None:
        """End a poll whose growth is known."""
        self._polled -= 1
        if not self._polled:
            self._mapped = 0

    def _read(self) -> int:
        now = self._meter.read()
        self._charged = min(self._charged, now)  # what was freed may grow again
        return now


class Growth:
    """The memory of one guest whose launch named no limit: what it has taken beyond its reservation.

    Before the guest computes, `open` takes all that it may grow by in one slice and is free. `settle` gives back what
    the guest did not use. So guests that compute at the same time never take the same bytes.
    """

    __slots__ = (
        "_before",
        "_charges",
        "_extra",
        "_is_open",
        "_ledger",
        "_limit",
        "_mapped",
        "_reserved",
        "_size",
        "refused",
    )

    def __init__(
        self,
        ledger: Ledger,
        charges: Charges,
        reserved_bytes: int,
        limit_bytes: int,
        start_bytes: int,
        *,
        mapped_bytes: int = 0,
    ) -> None:
        """Begin with `start_bytes`, of `reserved_bytes` that the launch has taken.

        Args:
            ledger: of the process.
            charges: of the process.
            reserved_bytes: what the launch has taken.
            limit_bytes: the most.
            start_bytes: what the guest has at its start.
            mapped_bytes: what its first poll maps, the memory that it starts with; 0 if that is mapped already.
        """
        self._ledger = ledger
        self._charges = charges
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
            self._before = self._charges.begin(self._mapped)
            self._mapped = 0
        return self._reserved + self._extra

    def settle(self, size_bytes: int | None = None) -> None:
        """Keep what the guest has grown by, give the rest back. `size_bytes`: its exact size, where that is known."""
        if not self._is_open:
            return
        self._is_open = False
        if size_bytes is None:
            grown = self._charges.grown(self._before)
            if grown >= GRAIN_BYTES:
                self._size = min(self._limit, self._size + grown)
        else:
            self._charges.end()
            self._size = size_bytes
        kept = min(self._extra, max(0, self._size - self._reserved))
        if self._extra > kept:
            self._ledger.give(Use.PROGRAMS, self._extra - kept)
        self._extra = kept

    def close(self) -> None:
        """Give everything back: the guest has ended."""
        if self._is_open:
            self._is_open = False
            self._charges.end()
        self._ledger.give(Use.PROGRAMS, self._extra)
        self._extra = 0

    def refusal(self) -> MemoryBudgetExceeded:
        """Return the error of the guest, which was refused memory below its limit."""
        return self._ledger.refusal(Use.PROGRAMS, GRAIN_BYTES)
