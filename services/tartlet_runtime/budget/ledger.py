"""The ledger of the process's memory: a bound, and what each kind of use has taken. Pure, and safe on any thread."""

from __future__ import annotations

import threading
from enum import StrEnum

from tartlet_common.errors.registry import MemoryBudgetExceeded


class Use(StrEnum):
    """What memory is taken for; the values appear in errors, in the runtime's state and in metrics."""

    PROCESS = "process"  # the runtime's own code, connections and tables
    PROGRAMS = "programs"  # guests' memories and stacks, their sources and arguments
    SPARES = "spares"  # sandboxes that are instantiated ahead of launches
    COMPILERS = "compilers"  # processes that compile modules
    MODULES = "modules"  # compiled modules that are loaded
    OUTPUTS = "outputs"  # of programs, kept for clients
    INBOXES = "inboxes"  # messages and answers that programs haven't taken
    HISTORIES = "histories"  # what the next control would make programs' state of
    JOURNALS = "journals"  # records that wait to be written
    TOKENIZERS = "tokenizers"  # loaded ones, and processes that try or serve one
    SOURCES = "sources"  # kept by digest
    REQUESTS = "requests"  # HTTP requests of programs, with what was read and not told


class Ledger:
    """What is taken of a bound, by use.

    Example:
        >>> ledger = Ledger(100)
        >>> ledger.take(Use.PROGRAMS, 60)
        >>> ledger.free_bytes, ledger.grow(Use.PROGRAMS, 50), ledger.free_bytes
        (40, 40, 0)
        >>> ledger.give(Use.PROGRAMS, 100)
        >>> ledger.free_bytes
        100
    """

    def __init__(self, bound_bytes: int, source: str = "setting") -> None:
        """Start with nothing taken. `source` says where the bound comes from."""
        self.bound_bytes = bound_bytes
        self.source = source
        self._taken = dict.fromkeys(Use, 0)
        self._free = bound_bytes
        self._lock = threading.Lock()

    @property
    def free_bytes(self) -> int:
        """Bytes that nobody has taken; negative after `add` went over the bound."""
        return self._free

    @property
    def taken(self) -> dict[Use, int]:
        """Bytes taken, by use."""
        return dict(self._taken)

    def take(self, use: Use, asked_bytes: int) -> None:
        """Take bytes.

        Raises:
            MemoryBudgetExceeded: Fewer bytes are free.
        """
        with self._lock:
            if asked_bytes > self._free:
                raise self._refusal(use, asked_bytes)
            self._change(use, asked_bytes)

    def add(self, use: Use, held_bytes: int) -> None:
        """Count bytes that are held already, whether or not they fit."""
        with self._lock:
            self._change(use, held_bytes)

    def grow(self, use: Use, wanted_bytes: int) -> int:
        """Take as many of the bytes as are free; return how many."""
        with self._lock:
            granted = max(0, min(wanted_bytes, self._free))
            self._change(use, granted)
            return granted

    def take_share(self, use: Use, least_bytes: int, most_bytes: int) -> int:
        """Take half of what is free, at most `most_bytes`; return how many bytes.

        Raises:
            MemoryBudgetExceeded: Fewer than `least_bytes` are free.
        """
        with self._lock:
            if least_bytes > self._free:
                raise self._refusal(use, least_bytes)
            share = min(most_bytes, max(least_bytes, self._free // 2))
            self._change(use, share)
            return share

    def give(self, use: Use, taken_bytes: int) -> None:
        """Give bytes back."""
        with self._lock:
            self._change(use, -taken_bytes)

    def refusal(self, use: Use, asked_bytes: int) -> MemoryBudgetExceeded:
        """Return the error of a request that didn't fit."""
        with self._lock:
            return self._refusal(use, asked_bytes)

    def _refusal(self, use: Use, asked_bytes: int) -> MemoryBudgetExceeded:
        free = max(0, self._free)
        return MemoryBudgetExceeded(use=use.value, asked=asked_bytes, free=free, limit=self.bound_bytes)

    def _change(self, use: Use, by: int) -> None:
        self._taken[use] += by
        self._free -= by
        assert self._taken[use] >= 0, use
