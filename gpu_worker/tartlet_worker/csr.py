"""Ragged columns: values [total] with indptr [B + 1], and the few operations that handlers need on them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32] | npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def any_by(flags: Bools, indptr: Ints) -> Bools:
    """[B]: whether any flag of a segment is set; flags [total]."""
    if not flags.any():
        return np.zeros(len(indptr) - 1, np.bool_)
    total = np.concatenate([[0], np.cumsum(flags)])
    return np.asarray(total[indptr[1:]] > total[indptr[:-1]])


def owners(indptr: Ints) -> npt.NDArray[np.int64]:
    """[total]: the segment of each value."""
    return np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))


def within(indptr: Ints) -> npt.NDArray[np.int64]:
    """[total]: the index of each value within its segment."""
    counts = np.diff(indptr)
    return np.arange(int(indptr[-1])) - np.repeat(indptr[:-1].astype(np.int64), counts)


def take(indptr: Ints, chosen: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Indices into the values of the chosen segments, in order, and the indptr that belongs to them."""
    counts = np.diff(indptr)[chosen].astype(np.int64)
    out = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    starts = indptr[:-1].astype(np.int64)[chosen]
    return np.arange(out[-1]) + np.repeat(starts - out[:-1], counts), out
