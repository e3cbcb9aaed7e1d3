"""Operations on ragged columns: values [total] in B segments, whose bounds are indptr [B + 1]."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32] | npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
I64 = npt.NDArray[np.int64]


def any_by(flags: Bools, indptr: Ints) -> Bools:
    """Return [B]: whether any flag of a segment is set. `flags` is [total]."""
    total = np.zeros(len(flags) + 1, np.int64)
    flags.cumsum(out=total[1:])
    return np.asarray(total[indptr[1:]] > total[indptr[:-1]])


def counts(indptr: Ints) -> I64:
    """Return [B]: the length of each segment."""
    return np.subtract(indptr[1:], indptr[:-1], dtype=np.int64)


def indptr_of(lengths: I64) -> I64:
    """Return indptr [B + 1] of segments with these lengths [B]."""
    out = np.zeros(len(lengths) + 1, np.int64)
    lengths.cumsum(out=out[1:])
    return out


def owners(indptr: Ints) -> I64:
    """Return [total]: the segment of each value."""
    return np.arange(len(indptr) - 1).repeat(counts(indptr))


def within(indptr: Ints) -> I64:
    """Return [total]: the index of each value within its segment."""
    return np.asarray(np.arange(int(indptr[-1])) - indptr[:-1].repeat(counts(indptr)))


def take(indptr: Ints, chosen: I64) -> tuple[I64, I64]:
    """Return the indices of the values of the chosen segments, in order, and the indptr of these segments."""
    lengths = counts(indptr)[chosen]
    out = indptr_of(lengths)
    starts = indptr[:-1].astype(np.int64)[chosen]
    return np.arange(int(out[-1])) + (starts - out[:-1]).repeat(lengths), out
