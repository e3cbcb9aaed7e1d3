"""The KV pages of contexts: growth, sharing between forks, and freeing.

Only awaited results order the commands of different queues. So a page that several contexts have used is freed only
when the queues of the other contexts are known to be past their last use of the page.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterable

from inferlet._queues.queue import Queue
from inferlet._values.types import KvPage


class SharedPage:
    """A page with the number of contexts that hold it, and the last uses by contexts that have released it."""

    __slots__ = ("_allocated", "page", "refs", "uses")

    def __init__(self, page: KvPage, queue: Queue) -> None:
        self.page = page
        self._allocated = (queue, queue.last_ticket)
        self.refs = 1
        self.uses: list[tuple[Queue, int]] = []

    def exists(self) -> bool:
        """Return whether the allocation took effect, as far as the program knows."""
        queue, ticket = self._allocated
        return not queue.lost(ticket)

    def blockers(self, queue: Queue) -> set[Queue]:
        """Return the queues, other than `queue`, that may still have commands on the page."""
        return {other for other, ticket in self.uses if other is not queue and other.done_ticket < ticket}


class PageTable:
    """The pages of one context, in order. Slot i of the table holds the context's token i."""

    __slots__ = ("_pages", "_queue", "_size", "ids")

    def __init__(self, queue: Queue, page_size: int) -> None:
        self._queue = queue
        self._size = page_size
        self._pages: list[SharedPage] = []
        self.ids = array("I")

    def __len__(self) -> int:
        return len(self._pages)

    def grow(self, num_tokens: int) -> None:
        """Allocate pages until `num_tokens` fit."""
        missing = -(-num_tokens // self._size) - len(self._pages)
        if missing > 0:
            self._add([SharedPage(page, self._queue) for page in self._queue.alloc_kvpage(missing)])

    def _add(self, pages: Iterable[SharedPage]) -> None:
        for page in pages:
            self._pages.append(page)
            self.ids.append(page.page)

    def trim(self, num_tokens: int) -> bool:
        """Free the pages after those that `num_tokens` need; return whether there are any. They are not shared."""
        keep = -(-num_tokens // self._size)
        dropped = [shared.page for shared in self._pages[keep:]]
        del self._pages[keep:], self.ids[keep:]
        self._queue.dealloc_kvpage(dropped)
        return bool(dropped)

    def fork(self, queue: Queue, num_tokens: int) -> PageTable:
        """Make a table on `queue` with the same first `num_tokens`. Full pages are shared, the last one is copied.

        The copy is a command of this table's own queue, so it follows the writes that it copies. Commands of the new
        queue must wait for the copy.
        """
        full, rest = divmod(num_tokens, self._size)
        child = PageTable(queue, self._size)
        for page in self._pages[:full]:
            page.refs += 1
        child._add(self._pages[:full])
        if rest:
            [copy] = self._queue.alloc_kvpage(1)
            page = SharedPage(copy, self._queue)
            self._queue.copy_kvpage(self._pages[full].page, copy, size=rest)
            page.uses.append((self._queue, self._queue.last_ticket))
            child._add([page])
        return child

    def release(self) -> None:
        """Release all pages; free those that no other context holds."""
        queue = self._queue
        free: list[KvPage] = []
        late: list[KvPage] = []
        blockers: set[Queue] = set()
        for shared in self._pages:
            shared.refs -= 1
            if shared.refs:
                shared.uses.append((queue, queue.last_ticket))
            elif not shared.exists():
                continue
            elif busy := shared.blockers(queue):
                blockers |= busy
                late.append(shared.page)
            else:
                free.append(shared.page)
        self._pages = []
        self.ids = array("I")
        queue.dealloc_kvpage(free)
        if late:
            _free_after(queue, late, blockers)


def _free_after(queue: Queue, pages: list[KvPage], blockers: set[Queue]) -> None:
    """Free pages on `queue` as soon as the queues `blockers` have run all commands that they have so far."""
    left = len(blockers)

    def done(_: asyncio.Future[None]) -> None:
        nonlocal left
        left -= 1
        if not left:
            queue.dealloc_kvpage(pages)

    for other in sorted(blockers, key=lambda blocker: blocker.id):
        other.synchronize().add_done_callback(done)
