"""The interface of attention: what an implementation is given, and what it returns (`forward` in docs/abi.md).

All keys and values of a command are in pages of the pool, also those that it does not store. The *columns* of a command
are the slots of its page list or of its page table. One number for each column says from which position on the column
can be seen. So an implementation needs no knowledge of mask bits, of empty slots, or of which tokens are new. For a
command over a table that number is the column's own, and nobody writes it down.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tartlet_worker.csr import I64, take
from tartlet_worker.pools import Pools


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The commands of a batch whose columns are the slots of a page table, column c at position c."""

    table: npt.NDArray[np.int32]  # [B] number of a command's table, or -1: its columns are listed
    row: npt.NDArray[np.int64]  # [B] its row of the batch's `pages` and `column_position`, or -1: it has a table
    pools: Pools  # whose tables they are


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """Columns and queries of B commands with T query tokens in all.

    Query t of command b sees column c if `column_position[b, c] <= query_position[t]` and, in a layer with a window,
    `query_position[t] - column_position[b, c] < window`. For a command in `allowed` that matrix replaces the first
    test (it is already cut to columns that can be seen at all); a window still applies.
    """

    query_indptr: npt.NDArray[np.int64]  # [B + 1] into the T tokens
    query_position: npt.NDArray[np.int32]  # [T]
    pages: npt.NDArray[np.int32]  # [B, N] page list, padded with the pool's zero page
    num_pages: npt.NDArray[np.int32]  # [B]
    column_position: npt.NDArray[np.int32]  # [B, N * page_size]; pools.FAR: can't be seen
    allowed: dict[int, npt.NDArray[np.bool_]] = field(default_factory=dict)  # b -> [tokens of b, N * page_size]
    tables: TableColumns | None = None
    """None: row b of `pages` and `column_position` is command b's. Else `TableColumns.row` says which row is."""

    @property
    def page_size(self) -> int:
        """Columns of a page."""
        return int(self.column_position.shape[1] // self.pages.shape[1])

    def table_of(self, b: int) -> int:
        """Return the number of the table that gives command b its columns, or -1 if they are listed."""
        return -1 if self.tables is None else int(self.tables.table[b])

    def positions(self, b: int) -> npt.NDArray[np.int32]:
        """Return [columns] the first position that sees each column of command b."""
        if self.table_of(b) >= 0:
            return np.arange(int(self.num_pages[b]) * self.page_size, dtype=np.int32)
        row: npt.NDArray[np.int32] = self.column_position[b if self.tables is None else int(self.tables.row[b])]
        return row

    def visible(self, b: int, window: int | None) -> npt.NDArray[np.bool_]:
        """Return which columns the tokens of command b see, as [tokens of b, columns] booleans."""
        query = self.query_position[self.query_indptr[b] : self.query_indptr[b + 1], None]
        position = self.positions(b)[None]
        seen = self.allowed.get(b, position <= query)
        if window is not None:
            seen = seen & (query - position < window)
        return np.asarray(seen)


@dataclass(frozen=True, slots=True)
class StaticRows:
    """N rows of plain decode in buffers that never move, for a graph: row i sees the columns 0 to position[i].

    Graphs of different N share the buffers. A row that fills a batch up has the zero page and position 0.
    """

    position: Tensor  # [N] int32
    pages: Tensor  # [N, width] int32; behind a row's own pages stands anything
    page_size: int


class PlanChanged(Exception):
    """A graph's attention asks for other launches than the captured ones, so a replay would compute nonsense."""


class StaticDecode(Protocol):
    """Attention in one graph. Everything but `fill` is captured, so it may neither wait nor copy from the host."""

    def fill(self, num_pages: npt.NDArray[np.int32], position: npt.NDArray[np.int32]) -> None:
        """Make ready for other rows, outside of the graph: before the capture and before each replay.

        `StaticRows` hold the new values by then. The arguments [N] say again on the host what they hold.

        Raises:
            PlanChanged: the graph can't be replayed for these rows. `start` and `run` outside of it are right.
        """

    def start(self) -> None:
        """Begin a pass: called in the graph, before the first layer."""

    def run(self, q: Tensor, kv: Tensor, window: int | None) -> Tensor:
        """Attend in one layer; see `Attention.run`."""


@runtime_checkable
class GraphAttention(Protocol):
    """What an implementation of attention has besides `Attention` if it can be captured."""

    def reaches(self, rows: int, most: int) -> tuple[int, ...]:
        """Return the longest contexts, ascending and at most `most` columns, that graphs of so many rows serve.

        One graph is captured for each. () if none can be; longer contexts don't use a graph.
        """

    def static(self, rows: StaticRows, reach: int) -> StaticDecode:
        """Make the attention of one graph, for contexts of at most `reach` columns."""


@runtime_checkable
class TakesLater(Protocol):
    """What an implementation of attention has besides `Attention` if it takes memory after it is made."""

    def later_bytes(self, graph_pages: int) -> int:
        """Return the bytes on the device, at most; the page table of the largest graph has `graph_pages` entries."""


def cut(batch: AttentionBatch, chosen: I64) -> AttentionBatch:
    """Return a batch of the chosen commands, in this order."""
    tokens, indptr = take(batch.query_indptr, chosen)
    pages, positions, tables = batch.pages, batch.column_position, batch.tables
    if tables is None:
        pages, positions = pages[chosen], positions[chosen]
    else:
        tables = TableColumns(tables.table[chosen], tables.row[chosen], tables.pools)
    return AttentionBatch(
        query_indptr=indptr,
        query_position=batch.query_position[tokens],
        pages=pages,
        num_pages=batch.num_pages[chosen],
        column_position=positions,
        allowed={i: batch.allowed[b] for i, b in enumerate(chosen.tolist()) if b in batch.allowed},
        tables=tables,
    )


class Attention(Protocol):
    """An implementation of attention. `prepare` is called once for each forward, `run` once for each layer."""

    name: str

    def prepare(self, batch: AttentionBatch) -> Any:
        """Make what all layers of one forward share, such as index tensors and masks."""

    def run(self, prepared: Any, q: Tensor, kv: Tensor, window: int | None) -> Tensor:
        """Attend in one layer.

        Args:
            prepared: what `prepare` returned.
            q: [T, heads, head_dim] queries, rotated.
            kv: [2, pages, kv_heads, page_size, head_dim] one layer of the pool, the new tokens' keys already in it.
            window: sliding window of the layer in tokens, or None.

        Returns:
            [T, heads * head_dim]; zeros for a query that sees no column.
        """
