"""The digests of rows that control has told a worker, so that the next control finds the rows again.

A digest names all tokens up to the end of a row (`lineage.chain`). The worker keeps the digest of a page until control
takes it back, which control does before it sends anything that writes the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from tartlet_common.engine.defaults import MAX_KEPT_ROWS


class Labels:
    """The digests that a worker has of its pages, and the changes that control has yet to tell the worker.

    Example:
        >>> labels = Labels()
        >>> labels.label([7, 8], [b"seven", b"eight"])
        >>> labels.written([6, 7], 1, 1, 1)
        >>> labels.take_taken_back(), labels.take_given()
        ([7], {8: b'eight'})
    """

    __slots__ = ("_given", "_known", "_taken_back")

    def __init__(self, known: Mapping[int, bytes] | None = None) -> None:
        """`known`: what the worker knows already, by page."""
        self._known = dict(known or {})
        self._given: dict[int, bytes] = {}
        self._taken_back: dict[int, None] = {}

    @property
    def wait(self) -> bool:
        """Whether the worker is to be told something."""
        return bool(self._given) or bool(self._taken_back)

    def label(self, pages: Iterable[int], digests: Iterable[bytes]) -> None:
        """Note which rows pages hold. Beyond `MAX_KEPT_ROWS` they get no digests."""
        known = self._known
        for page, digest in islice(zip(pages, digests, strict=True), max(0, MAX_KEPT_ROWS - len(known))):
            if known.get(page) != digest:
                known[page] = self._given[page] = digest

    def written(self, rows: list[int], start: int, tokens: int, page_size: int) -> None:
        """Take the digests back of the rows of a table that a forward writes: `tokens` from slot `start` on."""
        if self._known:
            self.forget(rows[start // page_size : (start + tokens - 1) // page_size + 1])

    def forget(self, pages: Iterable[int]) -> None:
        """Take the digests of pages back, because they will hold something else."""
        known = self._known
        for page in pages:
            if page in known:
                del known[page]
                self._given.pop(page, None)
                self._taken_back[page] = None

    def take_taken_back(self) -> list[int]:
        """Return the pages whose digests were taken back since the last call. The worker must hear of them at once."""
        taken, self._taken_back = [*self._taken_back], {}
        return taken

    def take_given(self) -> dict[int, bytes]:
        """Return the new digests, by page. The worker may hear of them late."""
        given, self._given = self._given, {}
        return given
