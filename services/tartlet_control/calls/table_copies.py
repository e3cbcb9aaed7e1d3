"""The call `copy_table`: copies keys and values between a row of a page table and a KV page that a program addresses.

It turns contexts into pages and pages into contexts. The worker copies between physical pages, as for `copy_kvpage`.
"""

from __future__ import annotations

from typing import Final

from tartlet_common.abi import CopyInto, Op, Record
from tartlet_common.engine.step import HOLE
from tartlet_common.errors.registry import InvalidArgument, MalformedSubmission
from tartlet_control.calls.base import SameBatch
from tartlet_control.calls.copying import own_rows
from tartlet_control.calls.kv import CopyKvPage, Physical
from tartlet_control.calls.table_masks import find
from tartlet_control.tables.ledger import PAGES
from tartlet_control.tables.page_tables import PageTable
from tartlet_control.tables.programs import CommandQueue, Held


class CopyTable(CopyKvPage):
    """Copies `length` tokens between the slots of `table` from `first` on and `page`: into the table, or out of it."""

    __slots__ = ("first", "into_table", "offset", "page", "table")

    def __init__(
        self, queue: CommandQueue, record: Record, arrived: float, page: int, offset: int, *, into_table: bool
    ) -> None:
        row = (record.a, record.b // queue.spec.page_size)
        super().__init__(queue, record, arrived, *((page, row) if into_table else (row, page)))
        self.table, self.first, self.length = record.a, record.b, record.c
        self.page, self.offset, self.into_table = page, offset, into_table

    @property
    def pages(self) -> tuple[int, ...]:
        """The pages that the command names."""
        return (self.page,)

    def physical(self, held: Held) -> Physical:
        """Return source, target, their offsets and the number of tokens. A table that is written isn't plain there.

        Raises:
            KeyError: the program doesn't hold the page.
            UnknownResource: the program has no such table.
            InvalidArgument: the table belongs to another queue, is too short, or the slots can't be written.
            OutOfPages: the rows are cached, and the engine has no pages to replace them.
        """
        page, table = held[PAGES][self.page], find(self)
        row, within = divmod(self.first, self.queue.spec.page_size)
        if table.rows[row] == HOLE:
            raise InvalidArgument(argument="first", detail=f"slot {self.first} is in a row that was dropped")
        if not self.into_table:
            return table.rows[row], page, within, self.offset, self.length
        self._write(table)
        return page, table.rows[row], self.offset, within, self.length

    def _write(self, table: PageTable) -> None:
        size, engine = self.queue.spec.page_size, self.queue.place.engine
        assert engine is not None, "a table with rows is on an engine"
        if self.first < (least := max(table.shared * size, table.plain, table.computed)):
            detail = f"slot {self.first} holds what was computed or is shared: copy to slot {least} or behind it"
            raise InvalidArgument(argument="first", detail=detail)
        if self.first < table.common * size:
            own_rows(self.queue.place, table, self.first)
        computed = table.computed
        table.sent(self.first, self.length, masked=True)
        table.computed = computed  # a copy may be written again
        table.masked(self.first)
        engine.labels.written(table.rows, self.first, self.length, size)
        table.labelled = min(table.labelled, self.first // size)


def parse_copy_table(queue: CommandQueue, record: Record, payload: memoryview, arrived: float) -> CopyTable:
    """Parse `copy_table`: both spans lie within a row and a page."""
    if len(payload) != 12:
        raise MalformedSubmission(detail=f"copy_table needs 12 payload bytes, not {len(payload)}")
    page, offset, into = payload.cast("I").tolist()
    size = queue.spec.page_size
    if into not in CopyInto.__members__.values():
        raise InvalidArgument(argument="into", detail=f"{into} is neither 0 (the page) nor 1 (the table)")
    if not record.c or max(record.b % size, offset) + record.c > size:
        detail = f"{record.c} tokens from {record.b} and {offset} on aren't within one row and one page of {size}"
        raise InvalidArgument(argument="size", detail=detail)
    return CopyTable(queue, record, arrived, page, offset, into_table=into == CopyInto.TABLE)


SAME_BATCH: Final = (SameBatch(Op.COPY_TABLE, parse_copy_table),)
