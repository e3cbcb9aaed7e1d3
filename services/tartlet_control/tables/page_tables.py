"""Page tables: the rows of one table, and the tables of an engine with the changes that wait for its next step.

A row of a table is a physical page. A program names tables, never rows, so no row has two names. Rows that several
tables share are full for ever: no command writes them again.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tartlet_common.engine.step import HOLE, NO_CHANGES, TableChanges
from tartlet_common.errors.registry import Overloaded

MAX_TABLES: Final = 1024
"""Page tables that a program may have on one engine."""
MAX_ENGINE_TABLES: Final = 1 << 14
"""Page tables that all programs together may have on one engine: a worker keeps a row of memory for each."""
MANY_CHANGES: Final = 1 << 13
"""So many changes are sent without waiting for a command that needs them."""
NO_LIMIT: Final = 1 << 62
_FIELDS: Final = 4  # numbers of a change besides its rows


def pages_of(rows: list[int]) -> list[int]:
    """Return the pages of rows, without those that were dropped."""
    return [row for row in rows if row != HOLE] if HOLE in rows else rows


class PageTable:
    """One page table of a program: slot i of the table is slot i % page_size of row i // page_size.

    A table without rows doesn't exist. Its object stays while TABLE commands of its queue that name it wait.
    """

    __slots__ = (
        "claimed",
        "common",
        "computed",
        "labelled",
        "limit",
        "number",
        "plain",
        "queue_id",
        "rows",
        "shared",
        "waiting",
        "written",
    )

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id  # the queue that the table belongs to
        self.claimed = queue_id  # and belongs to once the commands that were submitted have had their turn
        self.number = -1  # on its engine, while the table has rows
        self.rows: list[int] = []  # physical pages; HOLE where one was dropped
        self.shared = 0  # leading rows that another table has or had: they are never written again
        self.labelled = 0  # leading rows whose digests the worker was told
        self.common = 0  # leading rows that may be cached, or be another program's too, which the program doesn't know
        self.written = 0  # slots up to the end of the last forward that was sent
        self.plain = 0  # leading slots that were written in order, without a mask and without gaps, as far as sent
        self.computed = 0  # slots up to the end of the furthest forward that was sent
        self.limit = NO_LIMIT  # the first slot that was masked or dropped: from there on the table is never plain
        self.waiting = 0  # TABLE commands for this table that have not had their turn

    def cut(self, rows: int, page_size: int) -> list[int]:
        """Keep the first `rows` rows; return the pages of the others."""
        dropped = pages_of(self.rows[rows:])
        del self.rows[rows:]
        self.shared, self.common = min(self.shared, rows), min(self.common, rows)
        self.labelled = min(self.labelled, rows)
        self.written, self.plain = min(self.written, rows * page_size), min(self.plain, rows * page_size)
        self.computed = min(self.computed, rows * page_size)
        self.limit = self.limit if self.limit < rows * page_size else NO_LIMIT
        return dropped

    def lists(self, start: int, tokens: int, page_size: int) -> tuple[list[int], list[int], int]:
        """Return a forward of tokens from slot `start` on in page lists: ikv, okv and okv_offset."""
        first, offset = divmod(start, page_size)
        return self.rows[: first + bool(offset)], self.rows[first : -(-(start + tokens) // page_size)], offset

    def sent(self, start: int, tokens: int, *, masked: bool) -> None:
        """Note that a forward of tokens from slot `start` on was sent."""
        self.written = start + tokens
        self.computed = max(self.computed, self.written)
        if masked or start > self.plain:
            self.plain = min(self.plain, start)
        else:
            self.plain = min(start + tokens, self.limit)

    def masked(self, first: int) -> None:
        """Note that slots from `first` on were masked or dropped."""
        self.limit, self.plain = min(self.limit, first), min(self.plain, first)

    def take_over(self, other: PageTable, page_size: int, keep: int) -> None:
        """Become the first `keep` rows of another table, as far as they are written and plain."""
        slots = keep * page_size
        self.rows = other.rows[:keep]
        self.common = min(other.common, keep)
        self.labelled = min(other.labelled, keep)
        self.written, self.plain = min(other.written, slots), min(other.plain, slots)
        self.computed = min(other.computed, slots)
        self.limit = other.limit if other.limit < slots else NO_LIMIT


class RowRefs(dict[int, int]):
    """The pages in the tables of one program on one engine: how many of these tables have each page.

    A pool counts programs, and this counts a program's own tables. So a page that several tables of a program share
    counts once for the program, whoever else has it.

    Example:
        >>> rows = RowRefs()
        >>> rows.add([7, 8]), rows.add([7])
        ([7, 8], [])
        >>> rows.count_last([7, 8]), rows.drop([7, 8])
        (1, [8])
    """

    __slots__ = ()

    def add(self, pages: list[int]) -> list[int]:
        """Count pages of a table. Returns those that the program had in no table."""
        new = []
        for page in pages:
            count = self.get(page, 0)
            if not count:
                new.append(page)
            self[page] = count + 1
        return new

    def drop(self, pages: list[int]) -> list[int]:
        """Take back the counts of a table's pages. Returns those that the program has in no table any more."""
        gone = []
        for page in pages:
            left = self[page] - 1
            if left:
                self[page] = left
            else:
                del self[page]
                gone.append(page)
        return gone

    def count_last(self, pages: list[int]) -> int:
        """Return how many pages the program would have in no table after `drop`."""
        return sum([self[page] == 1 for page in pages])


class EngineTables:
    """The numbers of an engine's tables, by tenant, and the changes since the last step, in order.

    Example:
        >>> tables = EngineTables()
        >>> number = tables.take("tenant")
        >>> tables.change(number, number, 0, [7, 8])
        >>> tables.drain(100).rows.tolist(), len(tables)
        ([7, 8], 0)
        >>> tables.give(number), tables.counts
        (None, {})
    """

    __slots__ = ("_changes", "_free", "_tenants", "counts", "kept", "most", "size")

    def __init__(self, *, kept: bool = True) -> None:
        """`kept` is false for a worker without page tables. It gets page lists, and is told of no table."""
        self.kept = kept
        self.most = MAX_ENGINE_TABLES
        self.counts: dict[str, int] = {}
        """The numbers that each tenant's programs have, of those that have some."""
        self._free: list[int] = []
        self._tenants: list[str | None] = []  # by number
        self._changes: list[tuple[int, int, int, list[int]]] = []  # table, source, rows kept, new rows
        self.size = 0  # numbers that the changes take in a step

    def __len__(self) -> int:
        return len(self._changes)

    def take(self, tenant: str | None = None) -> int:
        """Return the number of a new table of a tenant's program, or of the prefix cache (None).

        Raises:
            Overloaded: the engine has as many tables as it may.
        """
        if self._free:
            number = self._free.pop()
        elif len(self._tenants) < self.most:
            number = len(self._tenants)
            self._tenants.append(None)
        else:
            raise Overloaded(what="page tables of an engine", limit=self.most)
        self._tenants[number] = tenant
        if tenant is not None:
            self.counts[tenant] = self.counts.get(tenant, 0) + 1
        return number

    def give(self, number: int) -> None:
        """Take back the number of a table that has no rows. The worker is told once the number is used again."""
        self._free.append(number)
        tenant = self._tenants[number]
        if tenant is not None:
            self.counts[tenant] -= 1
            if not self.counts[tenant]:
                del self.counts[tenant]

    @property
    def num_held(self) -> int:
        """How many tables have a number."""
        return len(self._tenants) - len(self._free)

    @property
    def num_free(self) -> int:
        """How many tables may still get a number."""
        return self.most - self.num_held

    @property
    def num_available(self) -> int:
        """How many can be taken, as of a pool: no number is only cached."""
        return self.num_free

    @property
    def total(self) -> int:
        """How many numbers there are for programs, beside those of the prefix cache."""
        return self.num_free + sum(self.counts.values())

    def change(self, table: int, source: int, keep: int, rows: list[int]) -> None:
        """Note that a table is now the first `keep` rows of `source`, followed by new rows."""
        assert table >= 0, "a table without a number has no rows"
        if not self.kept:
            return
        self._changes.append((table, source, keep, rows))
        self.size += _FIELDS + len(rows)

    def drain(self, most: int) -> TableChanges:
        """Return the first changes, up to `most` numbers in all. A change with more rows is sent in parts."""
        if not self._changes:
            return NO_CHANGES
        taken: list[tuple[int, int, int, list[int]]] = []
        left = most
        for i, (number, other, kept, rows) in enumerate(self._changes):
            part = rows[: max(0, left - _FIELDS)]
            if left < _FIELDS:
                self._changes = self._changes[i:]
                break
            left -= _FIELDS + len(part)
            taken.append((number, other, kept, part))
            if len(part) < len(rows):
                self._changes = [(number, number, kept + len(part), rows[len(part) :]), *self._changes[i + 1 :]]
                break
        else:
            self._changes = []
        self.size = sum(_FIELDS + len(rows) for *_, rows in self._changes)
        columns = np.array([change[:3] for change in taken], np.int32).reshape(-1, 3)
        table, source, keep = (np.ascontiguousarray(columns[:, k]) for k in range(3))
        lengths = [0, *(len(rows) for *_, rows in taken)]
        flat = [row for *_, rows in taken for row in rows]
        return TableChanges(table, source, keep, np.cumsum(lengths, dtype=np.int32), np.array(flat, np.int32))
