"""The call `forward`: embeds go through the model's layers over KV pages (Pie, Table 1)."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Final

import numpy as np

from tartlet_common.abi import Op, Record
from tartlet_common.engine.spec import ADAPTER_TRAIT, EngineSpec
from tartlet_common.engine.step import EMPTY_I32, EMPTY_U32, Kind
from tartlet_common.engine.step import Forward as ForwardBatch
from tartlet_common.errors.registry import InvalidArgument, MalformedSubmission, UnknownAdapter, UnsupportedTrait
from tartlet_control.calls.base import MAX_IDS, MAX_TOKENS, EngineCall, check_distinct, i32, u32, words
from tartlet_control.calls.copying import own_rows
from tartlet_control.tables.ledger import EMBEDS, PAGES
from tartlet_control.tables.page_tables import PageTable
from tartlet_control.tables.programs import Command, CommandQueue, Held

_EMPTY_U8: Final = np.zeros(0, np.uint8)
_Lists = tuple[list[int], list[int], list[int], list[int]]  # ikv, iemb, okv, oemb


class Forward(Command):
    """One `forward`, as docs/abi.md has it. `mask` holds packed rows or is empty."""

    __slots__ = ("adapter", "cut", "iemb", "ikv", "mask", "oemb", "okv", "okv_offset", "table")
    kind = int(Kind.FORWARD)

    def __init__(self, queue: CommandQueue, record: Record, arrived: float, lists: _Lists, mask: bytes) -> None:
        super().__init__(queue, record, arrived)
        self.ikv, self.iemb, self.okv, self.oemb = lists
        self.tokens = len(self.iemb)
        self.okv_offset = record.a
        self.adapter = 0  # number of the LoRA adapter, 0 for none
        self.table = -1  # `calls.tables.ForwardTable` has the program's number of a table here
        self.mask = mask
        self.cut: list[int] = []  # leading embeds that needn't be computed, because rows of another table have them
        self.size = 64 + 4 * (len(self.ikv) + self.tokens + len(self.okv) + len(self.oemb)) + len(mask)

    def find(self) -> PageTable | None:
        """Return the page table of a command over one; None for one over page lists."""
        return None


def parse_forward(queue: CommandQueue, record: Record, payload: memoryview, arrived: float) -> Command:
    """Parse `forward`: its lists fill the payload, and the written tokens fit the written pages."""
    size = len(payload)
    if size < 16:
        raise MalformedSubmission(detail=f"forward needs 16 payload bytes or more, not {size}")
    if record.c == 0:  # no mask: the usual case is all words
        values, mask = words(payload), b""
        n_ikv, n_iemb, n_okv, n_oemb = values[:4]
    else:
        n_ikv, n_iemb, n_okv, n_oemb = payload[:16].cast("I").tolist()
        lists_end = 16 + 4 * (n_ikv + n_iemb + n_okv + n_oemb)
        values, mask = payload[: min(lists_end, size & ~3)].cast("I").tolist(), bytes(payload[lists_end:])
    a = 4 + n_ikv
    b = a + n_iemb
    c = b + n_okv
    d = c + n_oemb
    if d != len(values):
        raise MalformedSubmission(detail=f"forward's lists of {d - 4} ids don't fill {len(values) - 4}")
    lists = (values[4:a], values[a:b], values[b:c], values[c:d])
    _check(queue.spec, lists, record)
    if record.c:
        mask = trimmed(n_iemb, n_ikv * queue.spec.page_size + n_iemb, mask)
    command = Forward(queue, record, arrived, lists, mask)
    command.adapter = checked_adapter(queue, record.b)
    return command


def checked_adapter(queue: CommandQueue, number: int) -> int:
    """Return the number of an adapter, which the model offers or the program goes on to use; 0 for none.

    Raises:
        UnsupportedTrait: the model has no adapters.
        UnknownAdapter: it has others.
    """
    spec = queue.place.model.spec
    if number and spec.adapter(number) is None and number not in queue.place.keeps:
        if ADAPTER_TRAIT not in spec.traits:
            raise UnsupportedTrait(model=spec.model, trait=ADAPTER_TRAIT)
        raise UnknownAdapter(model=spec.model, adapter=number, available=[adapter.name for adapter in spec.adapters])
    return number


def _check(spec: EngineSpec, lists: _Lists, record: Record) -> None:
    n_ikv, n_iemb, n_okv, n_oemb = map(len, lists)
    if not 1 <= n_iemb <= MAX_TOKENS:
        raise InvalidArgument(argument="iemb", detail=f"{n_iemb} embeds in one call, allowed are 1 to {MAX_TOKENS}")
    if n_ikv > MAX_IDS:
        raise InvalidArgument(argument="ikv", detail=f"{n_ikv} pages in one call, allowed are {MAX_IDS}")
    if n_oemb > n_iemb:
        raise InvalidArgument(argument="oemb", detail=f"{n_oemb} outputs of {n_iemb} input embeds")
    room = n_okv * spec.page_size
    if n_okv and record.a + n_iemb > room:
        raise InvalidArgument(
            argument="okv", detail=f"{n_iemb} tokens at offset {record.a} don't fit {n_okv} pages of {spec.page_size}"
        )
    if not n_okv and record.a:
        raise InvalidArgument(argument="okv_offset", detail="an offset without pages to write")
    if n_okv > 1:
        check_distinct("okv", lists[2])
    if n_oemb > 1:
        check_distinct("oemb", lists[3])


def trimmed(rows: int, columns: int, mask: bytes) -> bytes:
    """Return the mask's own bytes, without those that a guest may have added to fill a word."""
    need = (rows * columns + 7) // 8
    if not need <= len(mask) <= need + 3:
        raise InvalidArgument(argument="mask", detail=f"{rows} x {columns} bits are {need} bytes, not {len(mask)}")
    return mask[:need]


def widened(mask: bytes, rows: int, before: int, more: int) -> bytes:
    """Return a mask with `more` hidden columns between its first `before` columns and its last `rows`."""
    columns = before + rows
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), count=rows * columns, bitorder="little").reshape(rows, columns)
    return np.packbits(np.insert(bits, [before] * more, 0, axis=1), bitorder="little").tobytes()


class ForwardConflicts:
    """Embeds that the batch reads and writes for one queue, the KV slots that it writes, and the ends of its tables."""

    __slots__ = ("_ends", "_reads", "_slots", "_writes")

    def __init__(self) -> None:
        self._reads: set[int] = set()  # embeds
        self._writes: set[int] = set()
        self._slots: dict[int, int] = {}  # page -> bits of the KV slots that are written
        self._ends: dict[int, int] = {}  # table -> the end of what is written

    def add(self, command: Forward) -> None:
        """Record what a command reads and writes."""
        self._reads.update(command.iemb)
        self._writes.update(command.oemb)
        if command.table >= 0:
            end = command.okv_offset + command.tokens
            self._ends[command.table] = max(end, self._ends.get(command.table, 0))
        for page, bits in _written(command).items():
            self._slots[page] = self._slots.get(page, 0) | bits

    def conflicts(self, candidate: Forward) -> bool:
        """Return whether an embed is read after a write, or anything is written after a read or a write."""
        c, writes = candidate, self._writes
        if not (writes.isdisjoint(c.iemb) and writes.isdisjoint(c.oemb) and self._reads.isdisjoint(c.oemb)):
            return True
        if c.table >= 0:  # it may read what the batch writes, and write behind that
            return c.okv_offset < self._ends.get(c.table, 0)
        return any(self._slots.get(page, 0) & bits for page, bits in _written(c).items())


def _written(c: Forward) -> dict[int, int]:
    """Map each page that `c` writes to the bits of the KV slots that it writes there."""
    if not c.okv:
        return {}
    size = c.queue.spec.page_size
    start, end = c.okv_offset, c.okv_offset + c.tokens
    return {
        c.okv[i]: (1 << min(end - i * size, size)) - (1 << max(start - i * size, 0))
        for i in range(start // size, (end - 1) // size + 1)
    }


class PackForward:
    """Columns of a `forward` batch."""

    def __init__(self) -> None:
        self.lanes: list[int] = []
        self._ikv: list[int] = []
        self._ikv_indptr = [0]
        self._iemb: list[int] = []
        self._iemb_indptr = [0]
        self._okv: list[int] = []
        self._okv_indptr = [0]
        self._offset: list[int] = []
        self._oemb: list[int] = []
        self._oemb_indptr = [0]
        self._mask = bytearray()
        self._mask_indptr = [0]
        self._table: list[int] = []
        self._tables = False  # whether any command has a table
        self._adapter: list[int] = []

    def add(self, c: Forward, held: Held) -> None:
        """Add a command.

        A page may be named twice; named again and again it would cost the engine what no quota allows.
        """
        embed = held[EMBEDS].__getitem__
        iemb, oemb = [*map(embed, c.iemb)], [*map(embed, c.oemb)]
        offset, mask, table = c.okv_offset, c.mask, c.find()
        if table is None:
            page = held[PAGES].__getitem__
            ikv, okv = [*map(page, c.ikv)], [*map(page, c.okv)]
            if len(ikv) > 2 * len(held[PAGES]):
                raise InvalidArgument(argument="ikv", detail=f"{len(ikv)} pages; the program holds {len(held[PAGES])}")
            self._ikv += ikv
            self._okv += okv
            self._table.append(-1)
        else:
            if offset < table.common * c.queue.spec.page_size:
                own_rows(c.queue.place, table, offset)
            table.sent(offset, c.tokens, masked=bool(mask))
            engine = c.queue.place.engine
            assert engine is not None, "a table with rows is on an engine"
            engine.labels.written(table.rows, offset, c.tokens, engine.spec.page_size)
            table.labelled = min(table.labelled, offset // engine.spec.page_size)
            if engine.tables.kept:
                self._table.append(table.number)
                self._tables = True
            else:
                size = engine.spec.page_size
                if mask:
                    mask = widened(mask, c.tokens, offset, -offset % size)
                ikv, okv, offset = table.lists(offset, c.tokens, size)
                self._ikv += ikv
                self._okv += okv
                self._table.append(-1)
        self._ikv_indptr.append(len(self._ikv))
        self._iemb += iemb
        self._iemb_indptr.append(len(self._iemb))
        self._okv_indptr.append(len(self._okv))
        self._offset.append(offset)
        self._oemb += oemb
        self._oemb_indptr.append(len(self._oemb))
        self._mask += mask
        self._mask_indptr.append(len(self._mask))
        self._adapter.append(c.adapter)

    def finish(self) -> ForwardBatch:
        """Return the batch."""
        return ForwardBatch(
            u32(self.lanes),
            i32(self._ikv), i32(self._ikv_indptr),
            i32(self._iemb), i32(self._iemb_indptr),
            i32(self._okv), i32(self._okv_indptr), i32(self._offset),
            i32(self._oemb), i32(self._oemb_indptr),
            np.frombuffer(bytes(self._mask), np.uint8) if self._mask else _EMPTY_U8, i32(self._mask_indptr),
            i32(self._table) if self._tables else EMPTY_I32,
            u32(self._adapter) if any(self._adapter) else EMPTY_U32,
        )  # fmt: skip


def _names(c: Forward) -> Iterable[tuple[int, Iterable[int]]]:
    return ((PAGES, c.ikv), (EMBEDS, c.iemb), (PAGES, c.okv), (EMBEDS, c.oemb))


FORWARD: Final = EngineCall(
    Op.FORWARD,
    Kind.FORWARD,
    parse_forward,
    ForwardConflicts,
    PackForward,
    names=_names,
    reads=attrgetter("iemb"),
    writes=attrgetter("oemb"),
    runs_layers=True,
)

ENGINE_CALLS: Final = (FORWARD,)
