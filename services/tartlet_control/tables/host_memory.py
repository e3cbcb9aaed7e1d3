"""The pages of suspended programs in the host memory of an engine's worker, and the copies that its next step makes."""

from __future__ import annotations

import numpy as np

from tartlet_common.engine.step import EMPTY_I32, NO_SWAPS, Swaps
from tartlet_control.tables.ledger import Pool


class HostMemory:
    """The host pages of one engine.

    Copies wait until the next step, which makes them before (out) and after (in) it clears pages.

    Example:
        >>> memory = HostMemory(4, page_ns=1000)
        >>> kept = memory.copy_out([7, 8])
        >>> memory.take_out().out_page.tolist(), memory.pool.num_free
        ([7, 8], 2)
        >>> memory.copy_in(kept, [1, 2])
        >>> memory.take_in().in_page.tolist(), memory.pool.num_free
        ([1, 2], 4)
    """

    __slots__ = ("_come", "_done", "_leave", "num_steps", "page_ns", "pool")

    def __init__(self, count: int, page_ns: int) -> None:
        """`page_ns`: nanoseconds to copy one of many pages, one way."""
        self.pool = Pool("host pages", count)
        self.page_ns = page_ns
        self.num_steps = 0
        """Steps that took copies along, or could have."""
        self._leave: dict[int, int] = {}  # pages by the host page that takes them
        self._come: dict[int, int] = {}  # host pages by the page that takes them
        self._done: list[int] = []  # host pages that are free once the next step is formed

    def copy_out(self, pages: list[int]) -> list[int]:
        """Have pages copied to host memory, which has room; returns the host pages."""
        taken = self.pool.take(len(pages))
        self._leave.update(zip(taken, pages, strict=True))
        return taken

    def copy_in(self, host_pages: list[int], pages: list[int]) -> None:
        """Have host pages copied into pages, after these were cleared. The host pages are free then."""
        self._come.update(zip(pages, host_pages, strict=True))
        self._done += host_pages

    def forget(self, host_pages: list[int]) -> None:
        """Give host pages back that nobody needs."""
        for page in host_pages:
            self._leave.pop(page, None)
        self.pool.release(host_pages)

    def freed(self, pages: list[int]) -> None:
        """Copy nothing into pages that were freed meanwhile: they may be another program's by the next step."""
        if self._come:
            for page in pages:
                self._come.pop(page, None)

    def take_out(self) -> Swaps:
        """Return the copies out that the next step makes."""
        if not self._leave:
            return NO_SWAPS
        leave, self._leave = self._leave, {}
        host, pages = np.fromiter(leave, np.int32), np.fromiter(leave.values(), np.int32)
        return Swaps(pages, host, EMPTY_I32, EMPTY_I32)

    def take_in(self) -> Swaps:
        """Return the copies in that the next step makes, after its copies out."""
        self.num_steps += 1
        done, self._done = self._done, []
        self.pool.release(done)
        if not self._come:
            return NO_SWAPS
        come, self._come = self._come, {}
        pages, host = np.fromiter(come, np.int32), np.fromiter(come.values(), np.int32)
        return Swaps(EMPTY_I32, EMPTY_I32, host, pages)


def both(out: Swaps, into: Swaps) -> Swaps:
    """Return the copies out of one and the copies in of the other."""
    if not (len(out.out_page) or len(into.in_page)):
        return NO_SWAPS
    return Swaps(out.out_page, out.out_host, into.in_host, into.in_page)
