"""Sorts the commands of a batch into classes, of which kernels with a fixed notion of masks can serve some.

Such kernels count columns: a query of the last n sees all columns but the last n - 1, n - 2 and so on. Which commands
mean just that is decided here, on the host, from the columns' positions alone. A command over a plain page table takes
the same time at any context length. Commands over page lists take time for each of their columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from tartlet_worker.attention.base import AttentionBatch
from tartlet_worker.csr import I64, Bools

MASK_BYTES = 8 << 20
"""The largest mask [tokens, columns] of one command that is worth a copy to the device, a byte for each element."""


class Shape(IntEnum):
    """What a command asks of attention."""

    DECODE = 0
    """One token that sees all columns."""
    APPEND = 1
    """Tokens that are the last columns, in order; each sees all columns up to its own."""
    SEEN = 2
    """Any other command without a mask: columns with holes, in another order, or at equal positions."""
    MASKED = 3
    """A command with a mask of at most `MASK_BYTES`."""
    REST = 4
    """A larger mask, or no column that any token sees."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """The classes of B commands, R of them over page lists, and their columns without pages that no token sees."""

    shape: npt.NDArray[np.int8]  # [B] of `Shape`
    length: I64  # [B] columns to read: the last one that a token sees, and all before it
    row: I64  # [B] a command's row of the arrays below, or -1: its columns are those of a plain table
    pages: npt.NDArray[np.int32]  # [R, N]
    positions: npt.NDArray[np.int32]  # [R, N * page_size]
    order: I64 | None  # [R, N] the place of each page in the batch's list; None: no page was left out

    def mask(self, batch: AttentionBatch, b: int, window: int | None) -> Bools:
        """Return which of its `length` columns the tokens of command b see, as [tokens of b, length] booleans."""
        seen = batch.visible(b, window)
        if self.order is not None:
            size = batch.page_size
            seen = seen.reshape(len(seen), -1, size)[:, self.order[self.row[b]]].reshape(len(seen), -1)
        return seen[:, : self.length[b]]


def classify(batch: AttentionBatch, *, windowed: bool) -> Shapes:
    """Sort a batch.

    Args:
        batch: of at least one command, each with at least one token.
        windowed: whether layers of the model have windows. Kernels count windows in columns, so a command over lists
            is `DECODE` or `APPEND` then only if its columns are at consecutive positions, up to its last token's own.
    """
    tokens = np.diff(batch.query_indptr)
    shape = np.where(tokens == 1, Shape.DECODE, Shape.APPEND).astype(np.int8)
    length = batch.query_position[batch.query_indptr[1:] - 1].astype(np.int64) + 1
    row = np.arange(len(tokens)) if batch.tables is None else np.where(batch.tables.table >= 0, -1, batch.tables.row)
    listed = np.flatnonzero(row >= 0)
    if not len(listed):
        return Shapes(shape, length, row, batch.pages[:0], batch.column_position[:0], None)
    pages, positions, used, order = _used_columns(batch, listed, row[listed])
    row[listed] = np.arange(len(listed))
    width = positions.shape[1]
    length[listed] = np.where(used.any(1), width - used[:, ::-1].argmax(1), 0)
    whole = (used.sum(1) == length[listed]) & (length[listed] > 0)
    if windowed:
        column = np.arange(width)
        whole &= ((positions - positions[:, :1] == column) | (column >= length[listed, None])).all(1)
        newest = positions[np.arange(len(listed)), length[listed] - 1]
        whole &= newest == batch.query_position[batch.query_indptr[listed + 1] - 1]
    shape[listed[~whole]] = Shape.SEEN
    for i in np.flatnonzero(whole & (tokens[listed] > 1)).tolist():
        b = int(listed[i])
        query = batch.query_position[batch.query_indptr[b] : batch.query_indptr[b + 1]]
        if not _appends(positions[i, : length[b]], query):
            shape[b] = Shape.SEEN
    for b in batch.allowed:
        shape[b] = Shape.MASKED if tokens[b] * length[b] <= MASK_BYTES else Shape.REST
    shape[listed[length[listed] == 0]] = Shape.REST
    return Shapes(shape, length, row, pages, positions, order)


def _used_columns(
    batch: AttentionBatch, listed: I64, row: I64
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], Bools, I64 | None]:
    """Return pages, positions and whether any token sees a column, for listed commands; unseen pages stand last.

    The last value is the place that each page had, or None if all stayed in place.
    """
    highest = np.maximum.reduceat(batch.query_position, batch.query_indptr[:-1])
    pages, positions, size = batch.pages[row], batch.column_position[row], batch.page_size
    used: Bools = np.asarray(positions <= highest[listed, None])
    for b, allowed in batch.allowed.items():
        used[int(np.searchsorted(listed, b))] = allowed.any(0)
    unused_page: Bools = np.asarray(~used.reshape(len(listed), -1, size).any(2))
    if not (unused_page[:, :-1] & ~unused_page[:, 1:]).any():
        return pages, positions, used, None
    order = np.argsort(unused_page, axis=1, kind="stable")

    def moved(columns: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        in_pages = columns.reshape(len(listed), -1, size)
        return np.take_along_axis(in_pages, order[:, :, None], 1).reshape(len(listed), -1)

    return np.take_along_axis(pages, order, 1), moved(positions).astype(np.int32), moved(used).astype(np.bool_), order


def _appends(positions: npt.NDArray[np.int32], query: npt.NDArray[np.int32]) -> bool:
    """Return whether tokens at ascending positions [n] are the last of the columns, and see all columns before."""
    before = len(positions) - len(query)
    return (
        before >= 0
        and bool((query[1:] > query[:-1]).all())
        and bool((positions[before:] == query).all())
        and bool((positions[:before] <= query[0]).all())
    )
