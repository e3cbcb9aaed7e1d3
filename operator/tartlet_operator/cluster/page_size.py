"""How many objects a list's next page has, from what its pages came to."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

FIRST: Final = 100
_MOST: Final = 500
"""Objects of the first page of a list, and of any."""
_GOOD_BYTES: Final = 1 << 20
_LARGE_BYTES: Final = 4 << 20
"""What a page should have, and may: an object may have a megabyte, and one takes nine times that while it is read."""


@dataclass(slots=True)
class PageSize:
    """Of one list; `limit` objects are asked for.

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
        """A page of more is left, for a shorter one; one object is taken as it is."""
        return _LARGE_BYTES if self.limit > 1 else sys.maxsize

    def took(self, size: int) -> None:
        """A page had so many bytes."""
        self.limit = max(min(2 * self.limit, _MOST, self.limit * _GOOD_BYTES // max(size, 1)), 1)

    def was_large(self) -> None:
        """A page had more than it may."""
        self.limit = max(self.limit // 8, 1)
