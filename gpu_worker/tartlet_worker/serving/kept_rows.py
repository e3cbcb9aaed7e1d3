"""Keeps the digests of the rows that pages hold, as control tells them, for the next control."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from tartlet_common.engine.row_codec import labels_of, rows_of
from tartlet_protos import engine_pb2


class KeptRows:
    """The digests by page. The event loop's thread calls everything, and the engine's thread changes the digests."""

    def __init__(self, num_pages: int, afterwards: Callable[[Callable[[], None]], None]) -> None:
        """Know of no row. `afterwards` has the engine's thread call something behind the steps that are queued."""
        self._num_pages = num_pages
        self._afterwards = afterwards
        self._digests: dict[int, bytes] = {}

    def take(self, labels: engine_pb2.RowLabels) -> None:
        """Take what control tells. It counts behind the steps that came before, and ahead of those that come later.

        Raises:
            MalformedSubmission: it makes no sense.
        """
        self._afterwards(partial(self._apply, *rows_of(labels, self._num_pages)))

    def _apply(self, rows: Mapping[int, bytes], forgotten: Iterable[int]) -> None:
        for page in forgotten:
            self._digests.pop(page, None)
        self._digests.update(rows)

    async def all(self) -> engine_pb2.RowLabels:
        """Return the digests behind the steps that are queued."""
        loop = asyncio.get_running_loop()
        found: asyncio.Future[engine_pb2.RowLabels] = loop.create_future()

        def tell() -> None:
            loop.call_soon_threadsafe(_set, found, labels_of(self._digests))

        self._afterwards(tell)
        return await found

    def begin_link(self, *, keep: bool) -> tuple[int, ...]:
        """Return the pages that keep what they hold for a new link. With `keep` false, none does."""
        if not keep:
            self._digests = {}
        return tuple(self._digests)


def _set(found: asyncio.Future[engine_pb2.RowLabels], labels: engine_pb2.RowLabels) -> None:
    if not found.done():
        found.set_result(labels)
