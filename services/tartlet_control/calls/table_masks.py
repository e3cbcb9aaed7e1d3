"""The call `mask_table`: hides slots of a page table, shows them again, or drops whole rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

import numpy as np

from tartlet_common.abi import MaskWhat, Op, Record
from tartlet_common.engine.step import Kind
from tartlet_common.engine.step import MaskTable as MaskTableBatch
from tartlet_common.errors.registry import InvalidArgument, MalformedSubmission, UnknownResource, UnsupportedTrait
from tartlet_control.calls.base import EngineCall, ReadsOnly, i32, u32
from tartlet_control.tables.page_tables import PageTable
from tartlet_control.tables.programs import Command, CommandQueue, Held


class MaskTable(Command):
    """Hides or shows `length` slots of `table` from slot `first` on."""

    __slots__ = ("first", "hide", "length", "table")
    kind = int(Kind.MASK_TABLE)

    def __init__(self, queue: CommandQueue, record: Record, arrived: float, *, hide: bool) -> None:
        super().__init__(queue, record, arrived)
        self.table, self.first, self.length = record.a, record.b, record.c
        self.hide = hide


class DropRows(Command):
    """Frees rows of `table`: those of `length` slots from slot `first` on. Control executes it."""

    __slots__ = ("first", "length", "table")

    def __init__(self, queue: CommandQueue, record: Record, arrived: float) -> None:
        super().__init__(queue, record, arrived)
        self.table, self.first, self.length = record.a, record.b, record.c


class SlotsOf(Protocol):
    """A command on `length` slots of a table from `first` on."""

    @property
    def queue(self) -> CommandQueue:
        """The command's queue."""

    table: int
    first: int
    length: int


def find(command: SlotsOf) -> PageTable:
    """Return the table of a command, after a check that it has the slots.

    Raises:
        UnknownResource: the program has no such table.
        InvalidArgument: the table belongs to another queue, or is too short.
    """
    queue = command.queue
    table = queue.place.tables.get(command.table)
    if table is None or not table.rows:
        raise UnknownResource(kind="table", id=command.table)
    if table.queue_id != queue.id:
        raise InvalidArgument(argument="table", detail=f"{command.table} belongs to queue {table.queue_id}")
    end, room = command.first + command.length, len(table.rows) * queue.spec.page_size
    if end > room:
        raise InvalidArgument(argument="slots", detail=f"{command.first} to {end - 1} of a table with {room} slots")
    return table


def parse_mask_table(queue: CommandQueue, record: Record, payload: memoryview, arrived: float) -> Command:
    """Parse `mask_table`: what is dropped are whole rows."""
    if len(payload) != 4:
        raise MalformedSubmission(detail=f"mask_table needs 4 payload bytes, not {len(payload)}")
    what, size = payload.cast("I")[0], queue.spec.page_size
    if what not in MaskWhat.__members__.values():
        raise InvalidArgument(argument="what", detail=f"{what} is neither 0 (show), 1 (hide) nor 2 (drop)")
    if not record.c:
        raise InvalidArgument(argument="slots", detail="none are named")
    if what != MaskWhat.DROP:
        return MaskTable(queue, record, arrived, hide=what == MaskWhat.HIDE)
    if record.b % size or record.c % size:
        detail = f"{record.c} from {record.b} on aren't whole rows of {size}: hide the others"
        raise InvalidArgument(argument="slots", detail=detail)
    return DropRows(queue, record, arrived)


class PackMaskTable:
    """Columns of a `mask_table` batch."""

    def __init__(self) -> None:
        self.lanes: list[int] = []
        self._rows: list[tuple[int, int, int]] = []
        self._hidden: list[int] = []

    def add(self, c: MaskTable, held: Held) -> None:
        """Add a command, and note that its table isn't plain from there on."""
        table, engine = find(c), c.queue.place.engine
        assert engine is not None, "a table with rows is on an engine"
        if not engine.tables.kept:
            raise UnsupportedTrait(model=engine.spec.model, trait="mask_table")
        table.masked(c.first)
        self._rows.append((table.number, c.first, c.length))
        self._hidden.append(c.hide)

    def finish(self) -> MaskTableBatch:
        """Return the batch."""
        table, first, count = zip(*self._rows, strict=True)
        hidden = np.array(self._hidden, np.uint8)
        return MaskTableBatch(u32(self.lanes), i32([*table]), i32([*first]), i32([*count]), hidden)


def _names(c: MaskTable) -> Iterable[tuple[int, Iterable[int]]]:
    return ()


ENGINE_CALLS: Final = (
    EngineCall(Op.MASK_TABLE, Kind.MASK_TABLE, parse_mask_table, ReadsOnly, PackMaskTable, names=_names),
)
