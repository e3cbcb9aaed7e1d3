"""The size of a list's next page, from the bytes of the pages before."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

FIRST: Final = 100
_MOST: Final = 500
"""Objects of the first page of a list, and of any."""
_GOOD_BYTES: Final = 1 << 20
_LARGE_BYTES: Final = 4 << 20
"""Bytes that a page should have, and may have: an object of a megabyte takes nine while it is read."""


@dataclass(slots=True)
class PageSize:
    """The page size of one list: `limit` objects are asked for.

    Example:
        >>> size = PageSize()
        >>> for took in (150_000, 300_000, 2 << 20):
        ...     size.took(took)
        ...     print(size.limit)
        200
        400
        200
    """

    limit: int = FIRST

    @property
    def most_bytes(self) -> int:
        """Bytes beyond which a page is given up for a shorter one; a single object may have any number."""
        return _LARGE_BYTES if self.limit > 1 else sys.maxsize

    def took(self, size: int) -> None:
        """Adapt the limit to a page that had `size` bytes."""
        self.limit = max(min(2 * self.limit, _MOST, self.limit * _GOOD_BYTES // max(size, 1)), 1)

    def was_large(self) -> None:
        """Ask for much shorter pages: a page had more bytes than it may."""
        self.limit = max(self.limit // 8, 1)
