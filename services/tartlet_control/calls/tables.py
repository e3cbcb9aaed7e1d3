"""Calls on page tables: `table` extends, forks, cuts and frees one, and `forward_table` computes over one."""

from __future__ import annotations

from typing import Final

from tartlet_common.abi import Op, Record
from tartlet_common.engine.step import HOLE
from tartlet_common.errors.base import TartletError
from tartlet_common.errors.registry import (
    InvalidArgument,
    MalformedSubmission,
    UnknownResource,
)
from tartlet_control.calls.base import MAX_IDS, MAX_TOKENS, ControlCall, SameBatch, check_distinct
from tartlet_control.calls.forward import Forward, checked_adapter, trimmed
from tartlet_control.tables.page_tables import PageTable
from tartlet_control.tables.programs import Command, CommandQueue

_HEAD_BYTES: Final = 12


class Table(Command):
    """Sets a table to the first `keep_tokens` of `source` and `new_rows` rows more.

    `share` has the source's rows if the source belongs to another queue.
    """

    __slots__ = ("keep_tokens", "new_rows", "share", "shrunk", "source", "table")
    survives_cancel = True

    def __init__(self, queue: CommandQueue, record: Record, arrived: float, source: int) -> None:
        super().__init__(queue, record, arrived)
        self.table, self.keep_tokens, self.new_rows = record.a, record.b, record.c
        self.source = source
        self.share: Share | None = None
        self.shrunk: bool | None = None  # whether it only dropped rows, in a poisoned queue; None before it is executed


class Share(Command):
    """Holds the place of a `table` in the queue of its source, which is another queue than its own.

    When its turn comes, all commands that were submitted to the source's queue before the `table` have been sent, and
    none that were submitted after. It takes the rows then, and the `table` uses them once those commands have ended.
    """

    __slots__ = ("by", "done", "error")
    survives_cancel = True

    def __init__(self, source_queue: CommandQueue, by: Table) -> None:
        record = Record(int(Op.TABLE), 0, by.ticket, source_queue.id, 0, 0, 0, 0, 0)
        super().__init__(source_queue, record, by.arrived)
        self.by = by
        self.done = False  # the commands before it have ended, or its `table` doesn't need it any more
        self.error: TartletError | None = None


class Reused(Command):
    """Notes that a table got rows which hold the tokens that its queue was about to compute. Control makes it.

    `covered` are forwards that needn't run, each with the `embed_txt` before it; `trimmed` has fewer tokens left.
    """

    __slots__ = ("adapter", "covered", "start", "table", "trimmed", "values")

    def __init__(self, by: ForwardTable, values: list[int], arrived: float) -> None:
        """`by`: the first forward that has fewer tokens to compute, or none; `values`: the tokens from its start on."""
        super().__init__(by.queue, Record(0, 0, 0, by.queue.id, 0, 0, 0, 0, 0), arrived)
        self.table, self.start, self.values, self.adapter = by.table, by.okv_offset, values, by.adapter
        self.covered: list[tuple[Command, ForwardTable]] = []
        self.trimmed: ForwardTable | None = None


class ForwardTable(Forward):
    """One `forward_table`: its tokens go to the slots of `table` from `okv_offset` on, and see the slots before."""

    __slots__ = ()

    def trim(self, tokens: int) -> None:
        """Leave out the first tokens: the table has rows that hold them."""
        self.cut, self.iemb = self.iemb[:tokens], self.iemb[tokens:]
        self.okv_offset += tokens
        self.tokens -= tokens

    def restore(self) -> None:
        """Undo `trim`."""
        self.iemb = [*self.cut, *self.iemb]
        self.okv_offset -= len(self.cut)
        self.tokens += len(self.cut)
        self.cut = []

    def find(self) -> PageTable:
        """Return the table, after a check that the command may run over it.

        Raises:
            UnknownResource: the program has no such table.
            InvalidArgument: the table belongs to another queue, is too short, or shares the rows that are written.
        """
        queue, start = self.queue, self.okv_offset
        table = queue.place.tables.get(self.table)
        if table is None or not table.rows:
            raise UnknownResource(kind="table", id=self.table)
        if table.queue_id != queue.id:
            raise InvalidArgument(argument="table", detail=f"{self.table} belongs to queue {table.queue_id}")
        size = queue.spec.page_size
        if start + self.tokens > len(table.rows) * size:
            detail = f"{self.tokens} tokens from slot {start} don't fit {len(table.rows)} rows of {size}"
            raise InvalidArgument(argument="table", detail=detail)
        if start < table.shared * size:
            detail = f"slot {start} is in a shared row, and the first slot that may be written is {table.shared * size}"
            raise InvalidArgument(argument="start", detail=detail)
        if HOLE in table.rows[start // size : (start + self.tokens - 1) // size + 1]:
            detail = f"slots {start} to {start + self.tokens - 1} are in rows that were dropped"
            raise InvalidArgument(argument="start", detail=detail)
        return table


def parse_table(queue: CommandQueue, record: Record, payload: memoryview, arrived: float) -> Command:
    """Parse `table`: no source is the table itself."""
    if len(payload) not in {0, 4}:
        raise MalformedSubmission(detail=f"table needs 0 or 4 payload bytes, not {len(payload)}")
    if record.c > MAX_IDS:
        raise InvalidArgument(argument="new_rows", detail=f"{record.c} at once, the limit is {MAX_IDS}")
    return Table(queue, record, arrived, payload.cast("I")[0] if len(payload) else record.a)


def parse_forward_table(queue: CommandQueue, record: Record, payload: memoryview, arrived: float) -> Command:
    """Parse `forward_table`: its lists fill the payload up to the mask."""
    size = len(payload)
    if size < _HEAD_BYTES:
        raise MalformedSubmission(detail=f"forward_table needs {_HEAD_BYTES} payload bytes or more, not {size}")
    n_iemb, n_oemb, adapter = payload[:_HEAD_BYTES].cast("I").tolist()
    end = _HEAD_BYTES + 4 * (n_iemb + n_oemb)
    if end > size or (not record.c and end != size):
        raise MalformedSubmission(detail=f"forward_table's lists of {n_iemb + n_oemb} ids don't fill {size} bytes")
    if not 1 <= n_iemb <= MAX_TOKENS:
        raise InvalidArgument(argument="iemb", detail=f"{n_iemb} embeds in one call, allowed are 1 to {MAX_TOKENS}")
    if n_oemb > n_iemb:
        raise InvalidArgument(argument="oemb", detail=f"{n_oemb} outputs of {n_iemb} input embeds")
    ids = payload[_HEAD_BYTES:end].cast("I").tolist()
    iemb, oemb = ids[:n_iemb], ids[n_iemb:]
    if n_oemb > 1:
        check_distinct("oemb", oemb)
    start = record.b
    mask = trimmed(n_iemb, start + n_iemb, bytes(payload[end:])) if record.c else b""
    command = ForwardTable(queue, record, arrived, ([], iemb, [], oemb), mask)
    command.okv_offset = start
    command.table = record.a
    command.adapter = checked_adapter(queue, adapter)
    engine = queue.place.engine
    if engine is None or not engine.tables.kept:  # the step may have page lists instead
        size = queue.spec.page_size
        command.size += 4 * min((start + n_iemb) // size + 2, MAX_IDS) + (n_iemb * size // 8 if mask else 0)
    return command


CONTROL_CALLS: Final = (ControlCall(Op.TABLE, parse_table),)
SAME_BATCH: Final = (SameBatch(Op.FORWARD_TABLE, parse_forward_table),)
