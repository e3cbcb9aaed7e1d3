"""How many rows of logits are drawn from at once, and the memory that drawing takes beside the logits. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

DRAW_BYTES = 256 << 20
"""Memory of a portion of rows, at most. A single row may take more."""
BYTES_A_DRAWN_LOGIT: Final = 96
"""Of one row and token while top_p sorts a whole vocabulary: weights, sums in float64, sorted keys and their places.

On a CPU these are fewer than 80, as a test counts. The rest is for what a device's sort takes for itself.
"""


def drawn_at_once(vocab: int) -> int:
    """Return how many rows a portion has at most.

    Example:
        >>> drawn_at_once(128256), drawn_at_once(100_000_000)
        (21, 1)
    """
    return max(1, DRAW_BYTES // (BYTES_A_DRAWN_LOGIT * vocab))


def portions(rows: int, vocab: int) -> Iterator[slice]:
    """Yield slices of `rows` rows, one at least.

    Example:
        >>> list(portions(25, 128256)), list(portions(0, 10))
        ([slice(0, 21, None), slice(21, 42, None)], [slice(0, 279620, None)])
    """
    count = drawn_at_once(vocab)
    for first in range(0, max(1, rows), count):
        yield slice(first, first + count)


def draw_bytes(rows: int, vocab: int) -> int:
    """Return the bytes that drawing from so many rows takes at most.

    Example:
        >>> draw_bytes(1, 1000), draw_bytes(256, 128256) <= DRAW_BYTES
        (96000, True)
    """
    return BYTES_A_DRAWN_LOGIT * vocab * min(rows, drawn_at_once(vocab))
