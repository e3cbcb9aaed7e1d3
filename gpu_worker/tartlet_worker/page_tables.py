"""Page tables as a worker keeps them: int32 rows by table number, and how far each table is plain.

A row is a physical page. Control sends only changes (`TableChanges`), so a decode step brings no rows.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from tartlet_common.engine.step import HOLE, TableChanges

NO_LIMIT: Final = np.iinfo(np.int32).max
_FIRST_TABLES: Final = 64
_FIRST_ROWS: Final = 64


class PageTables:
    """The rows of all tables of an engine, as one array that grows.

    `rows` is [tables, width] int32; only the first `count[t]` entries of row t mean anything. The first `plain[t]`
    slots of table t were written at the positions 0, 1, 2 and so on, each by a forward without a mask that saw the
    slots before it. A query at position p sees exactly the plain slots up to p: nothing else need be known of them.
    From slot `limit[t]` on, slots were masked or their rows dropped, so table t is never plain there.

    Example:
        >>> tables = PageTables(page_size=4)
        >>> column = lambda *values: np.array(values, np.int32)
        >>> tables.change(TableChanges(column(3), column(3), column(0), column(0, 2), column(7, 9)))
        >>> tables.rows[3, : tables.count[3]].tolist()
        [7, 9]
    """

    def __init__(self, page_size: int) -> None:
        """Make an empty set of tables. `page_size` is in tokens."""
        self._page_size = page_size
        self.version = 0  # grows whenever `rows` is another array
        self.rows = np.zeros((_FIRST_TABLES, _FIRST_ROWS), np.int32)
        self.count = np.zeros(_FIRST_TABLES, np.int32)
        self.plain = np.zeros(_FIRST_TABLES, np.int32)  # slots
        self.limit = np.full(_FIRST_TABLES, NO_LIMIT, np.int32)  # slots
        self.hidden: dict[int, npt.NDArray[np.bool_]] = {}
        """By table: which slots are hidden. Slots past the end of an array aren't."""
        self.mark = np.zeros(_FIRST_TABLES, np.int64)  # scratch memory of a batch, zero between uses
        self.changed: dict[int, tuple[int, int]] = {}
        """By table: the first and behind the last row that changed since the copy of `rows` on the device was made.

        There is one span for each table, because on a CPU nobody takes the changes.
        """

    def reset(self) -> None:
        """Forget all tables."""
        self.count[:] = 0
        self.plain[:] = 0
        self.limit[:] = NO_LIMIT
        self.hidden.clear()
        self.changed.clear()
        self.version += 1

    def change(self, changes: TableChanges, position: npt.NDArray[np.int32] | None = None) -> None:
        """Apply the changes of a step, in order.

        `position` [pages, page_size]: the positions of the slots of pages, -1 where nothing was written. Rows are empty
        when a table gets them, or hold what the table had there in an earlier life; then they are plain.
        """
        tables, sources, keeps = changes.table.tolist(), changes.source.tolist(), changes.keep.tolist()
        bounds = changes.indptr.tolist()
        for i, (table, source, keep) in enumerate(zip(tables, sources, keeps, strict=True)):
            added = changes.rows[bounds[i] : bounds[i + 1]]
            end = keep + len(added)
            self._reserve(max(table, source) + 1, end)
            first = keep
            again = self._again(table, keep, added)
            if source != table:
                self.rows[table, :keep] = self.rows[source, :keep]
                self.plain[table], self.limit[table] = self.plain[source], self.limit[source]
                first = 0
            if self.hidden:
                self._keep_hidden(table, source, keep, added)
            self.rows[table, keep:end] = added
            self.count[table] = end
            slots = keep * self._page_size
            self.plain[table] = max(min(int(self.plain[table]), slots), again if self.plain[table] >= slots else 0)
            if (added == HOLE).any():
                self.limit[table] = min(int(self.limit[table]), slots)
            elif self.limit[table] >= slots:
                self.limit[table] = NO_LIMIT
            if position is not None and self.plain[table] == slots and len(added) and position[added[0], 0] == slots:
                self.plain[table] = min(slots + self._filled(slots, position[added]), int(self.limit[table]))
            if end > first:
                had = self.changed.get(table, (first, end))
                self.changed[table] = min(had[0], first), max(had[1], end)

    def _filled(self, first: int, position: npt.NDArray[np.int32]) -> int:
        """Return how many slots of rows were written in order, from slot `first` of their table on."""
        wrong = np.flatnonzero(position.reshape(-1) != np.arange(first, first + position.size))
        return int(wrong[0]) if len(wrong) else position.size

    def _again(self, table: int, keep: int, added: npt.NDArray[np.int32]) -> int:
        """Return how many slots of a table stay plain, if those of its first `keep` rows are: rows are added again."""
        had = self.rows[table, keep : int(self.count[table])][: len(added)]
        differ = np.flatnonzero(had != added[: len(had)])
        same = int(differ[0]) if len(differ) else len(had)
        return min(int(self.plain[table]), (keep + same) * self._page_size) if same else 0

    def _keep_hidden(self, table: int, source: int, keep: int, added: npt.NDArray[np.int32]) -> None:
        """Keep the marks of slots whose rows stay: the first `keep` rows of the source, and rows that are added again.

        A row that is dropped makes control send the rows behind it again.
        """
        found = self.hidden.pop(table, None) if source == table else self.hidden.get(source)
        if source != table:
            self.hidden.pop(table, None)
        if found is None:
            return
        stays = keep * self._page_size
        marks = np.zeros((keep + len(added)) * self._page_size, np.bool_)
        end = min(len(found), stays)
        marks[:end] = found[:end]
        if source == table:
            had = self.rows[table, keep : int(self.count[table])][: len(added)]
            again = np.repeat(had == added[: len(had)], self._page_size)
            behind = found[stays : stays + len(again)]
            marks[stays : stays + len(behind)] = behind & again[: len(behind)]
        if marks.any():
            self.hidden[table] = marks

    def mask(self, table: int, first: int, count: int, *, hide: bool) -> None:
        """Hide slots of a table, or show them again."""
        slots = int(self.count[table]) * self._page_size
        marks = np.zeros(slots, np.bool_)
        found = self.hidden.pop(table, None)
        if found is not None:
            marks[: len(found)] = found[:slots]
        marks[first : first + count] = hide
        if marks.any():
            self.hidden[table] = marks
        self.limit[table] = min(int(self.limit[table]), first)
        self.plain[table] = min(int(self.plain[table]), first)

    def _reserve(self, tables: int, rows: int) -> None:
        """Let the array have at least so many tables of so many rows."""
        had_tables, had_rows = self.rows.shape
        if tables <= had_tables and rows <= had_rows:
            return
        num, width = _doubled(had_tables, tables), _doubled(had_rows, rows)
        grown = np.zeros((num, width), np.int32)  # memory that nothing was written to isn't mapped
        for table in np.flatnonzero(self.count).tolist():
            used = int(self.count[table])
            grown[table, :used] = self.rows[table, :used]
        self.rows = grown
        self.version += 1
        if num > had_tables:
            self.count = np.pad(self.count, (0, num - had_tables))
            self.plain = np.pad(self.plain, (0, num - had_tables))
            self.limit = np.pad(self.limit, (0, num - had_tables), constant_values=NO_LIMIT)
            self.mark = np.zeros(num, np.int64)

    def take_changed(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Return the places [N] of entries of `rows`, counted flat, that may have changed, and the entries.

        They are those since the last call. No place stands there twice, because a device writes equal places in any
        order.
        """
        width = self.rows.shape[1]
        spans = [np.arange(table * width + first, table * width + end) for table, (first, end) in self.changed.items()]
        self.changed.clear()
        if not spans:
            return np.zeros(0, np.int32), np.zeros(0, np.int32)
        place = np.concatenate(spans)
        return place.astype(np.int32), self.rows.reshape(-1)[place]

    def repeated(self, table: npt.NDArray[np.int32]) -> bool:
        """Return whether a number stands twice among the tables of a batch."""
        number = np.arange(1, len(table) + 1)
        self.mark[table] = number
        again = bool((self.mark[table] != number).any())
        self.mark[table] = 0
        return again

    def pages(self, table: npt.NDArray[np.int32], slot: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the pages [T] of slots [T] of tables [T]; HOLE where a row was dropped."""
        return self.rows[table, slot // self._page_size].astype(np.int64)


def _doubled(had: int, needed: int) -> int:
    while had < needed:
        had *= 2
    return had
