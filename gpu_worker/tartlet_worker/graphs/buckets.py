"""The numbers of rows that graphs are captured for, and what their buffers hold. Pure."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

USUAL: Final = (1, 2, 4, 8, *range(16, 128, 8), *range(128, 257, 16))
"""Small batches have a graph each; larger ones are filled up by at most 7, and those above 128 by at most 15 rows."""
SAMPLED_BYTES: Final = 256 << 20
"""Memory of the largest graph that samples, which is held for good. Larger batches are sampled without a graph."""
BYTES_A_LOGIT: Final = 32
"""Of one row and token while a graph samples: logits in two types, weights, their running sums in float64."""
_MOST_PAGE_BYTES: Final = 32 << 20


def parse(text: str) -> tuple[int, ...]:
    """Read numbers of rows that commas separate, ascending; an empty text means the usual ones.

    Raises:
        ValueError: a part is no number, or a number is below 1.

    Example:
        >>> parse("8, 1,2")
        (1, 2, 8)
        >>> parse("")[:6], parse("")[-2:]
        ((1, 2, 4, 8, 16, 24), (240, 256))
    """
    if not text.strip():
        return USUAL
    found = sorted({int(part) for part in text.split(",") if part.strip()})
    if not found or found[0] < 1:
        raise ValueError(f"{text!r}: give numbers of rows from 1 on, separated by commas")
    return tuple(found)


def bucket_of(rows: int, buckets: tuple[int, ...]) -> int | None:
    """Return the smallest bucket that has so many rows, or None.

    Example:
        >>> [bucket_of(rows, (1, 2, 4, 8)) for rows in (1, 3, 8, 9)]
        [1, 4, 8, None]
    """
    at = bisect_left(buckets, rows)
    return buckets[at] if at < len(buckets) else None


def up_to(buckets: tuple[int, ...], rows: int) -> tuple[int, ...]:
    """Return the buckets that serve batches of at most `rows` rows.

    Example:
        >>> up_to((1, 2, 4, 8, 16), 5)
        (1, 2, 4, 8)
    """
    top = bucket_of(rows, buckets)
    return buckets if top is None else buckets[: buckets.index(top) + 1]


def table_width(max_position: int, page_size: int, rows: int) -> int:
    """Return how many pages a row of the graphs' page table has: the longest context's, or what 32 MiB allow.

    Example:
        >>> table_width(8192, 16, 256), table_width(1 << 20, 1, 256)
        (512, 32768)
    """
    return max(1, min(-(-max_position // page_size), _MOST_PAGE_BYTES // 4 // rows))


def sampled_rows(vocab: int, rows: int) -> int:
    """Return how many rows a graph that samples has at most, where graphs of layers have `rows`.

    Example:
        >>> sampled_rows(16384, 256), sampled_rows(128256, 256)
        (256, 65)
    """
    return max(1, min(rows, SAMPLED_BYTES // (BYTES_A_LOGIT * vocab)))
