"""What the runtime keeps for one program outside of its guest: output and messages, counted in grains."""

from __future__ import annotations

from collections.abc import Callable

from tartlet_runtime.budget.ledger import Ledger, Use

FREE_BYTES = 256 << 10
"""Bytes that each holding has without taking them: the launch has reserved them."""
HOLDINGS = 2
"""Holdings of one program."""
GRAIN_BYTES = 256 << 10
"""Bytes that are taken at once, so that few changes of a holding's size touch the ledger."""


class Holding:
    """Bytes that grow and shrink with what is kept for one program. A launch has reserved the first grain.

    Example:
        >>> ledger = Ledger(1 << 20)
        >>> holding = Holding(ledger, Use.OUTPUTS)
        >>> holding.fit(10_000), ledger.taken[Use.OUTPUTS]
        (None, 0)
        >>> holding.fit(500_000), ledger.taken[Use.OUTPUTS]
        (None, 262144)
        >>> holding.close(), ledger.free_bytes
        (None, 1048576)
    """

    __slots__ = ("_ledger", "_make_room", "_taken", "_use", "granted")

    def __init__(self, ledger: Ledger, use: Use, make_room: Callable[[int], None] | None = None) -> None:
        """Start empty. `make_room` frees, where it can, as many bytes as it is given: what may give way goes."""
        self._ledger = ledger
        self._use = use
        self._make_room = make_room
        self._taken = 0
        self.granted = FREE_BYTES
        """Bytes that may be kept without a call of `fit`."""

    def fit(self, size_bytes: int) -> None:
        """Take or give back bytes, so that `size_bytes` are granted and at most two grains more.

        Raises:
            MemoryBudgetExceeded: the process's memory can't hold them. What was granted stays.
        """
        more = size_bytes - self.granted
        if more > 0:
            more += -more % GRAIN_BYTES
            if self._make_room is not None and more > self._ledger.free_bytes:
                self._make_room(more)
            self._ledger.take(self._use, more)
        else:
            spare = min(-more // GRAIN_BYTES * GRAIN_BYTES, self._taken)
            if spare < 2 * GRAIN_BYTES:
                return
            self._ledger.give(self._use, spare)
            more = -spare
        self._taken += more
        self.granted += more

    def close(self) -> None:
        """Give everything back."""
        self._ledger.give(self._use, self._taken)
        self._taken = 0
        self.granted = FREE_BYTES
