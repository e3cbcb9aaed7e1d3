"""Rows that an engine holds for no program of this control: an earlier control had them computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from tartlet_control.tables.ledger import Pool


class LeftRows:
    """Pages that are cached until a program takes them over, or until the room is needed.

    Example:
        >>> pool = Pool("KV pages", 4)
        >>> left = LeftRows(pool, {2: b"first", 3: b"second"})
        >>> pool.num_free, pool.num_cached
        (2, 2)
        >>> left.take([b"first", b"other", b"second"]), pool.num_held
        ([2], 1)
    """

    __slots__ = ("_pages", "_pool")

    def __init__(self, pool: Pool, rows: Mapping[int, bytes]) -> None:
        """Take the rows, by page, out of a pool of which nothing was taken."""
        self._pool = pool
        self._pages = {digest: page for page, digest in rows.items()}
        pool.begin_cached(self._pages.values())

    def __len__(self) -> int:
        return len(self._pages)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._pages

    def match(self, digests: Sequence[bytes]) -> int:
        """Return how many leading rows are there."""
        return next((at for at, digest in enumerate(digests) if digest not in self._pages), len(digests))

    def take(self, digests: Sequence[bytes]) -> list[int]:
        """Return the pages of the leading rows that are there. They are held now, by whoever takes them."""
        taken = [self._pages.pop(digest) for digest in digests[: self.match(digests)]]
        self._pool.retain(taken)
        self._pool.drop(taken)
        return taken

    def give_back(self, rows: Iterable[tuple[bytes, int]]) -> None:
        """Keep rows again that were taken, and not written."""
        for digest, page in rows:
            self._pages[digest] = page
            self._pool.keep([page])
            self._pool.release([page])

    def evict(self, asked: int) -> int:
        """Free up to `asked` pages. Returns how many were freed."""
        going = [*islice(self._pages, asked)]
        return self._pool.drop([self._pages.pop(digest) for digest in going])
