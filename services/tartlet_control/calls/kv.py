"""Calls on pools and pages: allocation of pages, embeds and token slots, `copy_kvpage` and `mask_kvpage`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from tartlet_common.abi import Op, Record
from tartlet_common.engine.step import CopyKvPage as CopyKvPageBatch
from tartlet_common.engine.step import Kind
from tartlet_common.engine.step import MaskKvPage as MaskKvPageBatch
from tartlet_common.errors.registry import InvalidArgument, MalformedSubmission
from tartlet_control.calls.base import MAX_IDS, ControlCall, EngineCall, check_distinct, i32, u32, words
from tartlet_control.tables.ledger import EMBEDS, PAGES, SLOTS
from tartlet_control.tables.programs import Command, CommandQueue, Held

# ---- alloc and dealloc ----------------------------------------------------------------------------------------------


class Alloc(Command):
    """Takes `ids` (virtual) from a pool."""

    __slots__ = ("ids", "pool")
    survives_cancel = True

    def __init__(self, queue: CommandQueue, record: Record, arrived: float, pool: int, ids: list[int]) -> None:
        super().__init__(queue, record, arrived)
        self.pool = pool
        self.ids = ids
        self.size = 32 + 4 * len(ids)


class Dealloc(Alloc):
    """Gives `ids` (virtual) back to a pool."""

    __slots__ = ()


_POOL_OPS: Final[dict[int, tuple[type[Alloc], int]]] = {
    Op.ALLOC_KVPAGE: (Alloc, PAGES),
    Op.DEALLOC_KVPAGE: (Dealloc, PAGES),
    Op.ALLOC_EMB: (Alloc, EMBEDS),
    Op.DEALLOC_EMB: (Dealloc, EMBEDS),
    Op.ALLOC_SLOT: (Alloc, SLOTS),
    Op.DEALLOC_SLOT: (Dealloc, SLOTS),
}


def parse_alloc(queue: CommandQueue, record: Record, payload: memoryview, arrived: float) -> Command:
    """Parse a list of ids to allocate or free."""
    ids = words(payload)
    if len(ids) > MAX_IDS:
        raise InvalidArgument(argument="ids", detail=f"{len(ids)} at once, the limit is {MAX_IDS}")
    if len(ids) > 1:
        check_distinct("ids", ids)
    make, pool = _POOL_OPS[record.op]
    return make(queue, record, arrived, pool, ids)


CONTROL_CALLS: Final = tuple(ControlCall(Op(op), parse_alloc) for op in _POOL_OPS)


# ---- copy_kvpage ----------------------------------------------------------------------------------------------------


Physical = tuple[int, int, int, int, int]
"""Of a copy: source and target page on the engine, the offsets in both, and the number of tokens."""
Span = int | tuple[int, int]
"""What a copy reads or writes: a page, or a table's number and row."""


class CopyKvPage(Command):
    """Copies `length` tokens between two pages."""

    __slots__ = ("dst", "dst_offset", "length", "src", "src_offset")
    kind = int(Kind.COPY_KVPAGE)

    def __init__(self, queue: CommandQueue, record: Record, arrived: float, src: Span, dst: Span) -> None:
        super().__init__(queue, record, arrived)
        self.src = src
        self.dst = dst
        self.src_offset, self.dst_offset, self.length = record.a, record.b, record.c

    @property
    def pages(self) -> tuple[int, ...]:
        """The pages that the command names."""
        return (self.src, self.dst)  # type: ignore[return-value]  # `CopyTable` alone has other spans

    def physical(self, held: Held) -> Physical:
        """Return source, target, their offsets and the number of tokens.

        Raises:
            KeyError: the program doesn't hold a page.
        """
        src, dst = map(held[PAGES].__getitem__, self.pages)
        return src, dst, self.src_offset, self.dst_offset, self.length


def parse_copy(queue: CommandQueue, record: Record, payload: memoryview, arrived: float) -> Command:
    """Parse `copy_kvpage`: both spans lie within a page."""
    if len(payload) != 8:
        raise MalformedSubmission(detail=f"copy_kvpage needs 8 payload bytes, not {len(payload)}")
    src, dst = payload.cast("I").tolist()
    page_size = queue.spec.page_size
    if max(record.a, record.b) + record.c > page_size:
        raise InvalidArgument(argument="size", detail=f"{record.c} tokens pass the page's end of {page_size}")
    return CopyKvPage(queue, record, arrived, src, dst)


class CopyConflicts:
    """Pages, and rows of tables, that the batch's copies of one queue touch and write."""

    __slots__ = ("_touched", "_written")

    def __init__(self) -> None:
        self._touched: set[Span] = set()
        self._written: set[Span] = set()

    def add(self, command: CopyKvPage) -> None:
        """Record what a copy reads and writes."""
        self._touched.update((command.src, command.dst))
        self._written.add(command.dst)

    def conflicts(self, candidate: CopyKvPage) -> bool:
        """Return whether the copy writes what another touches, or reads what another writes."""
        return candidate.dst in self._touched or candidate.src in self._written


class PackCopies:
    """Columns of a `copy_kvpage` batch."""

    def __init__(self) -> None:
        self.lanes: list[int] = []
        self._rows: list[Physical] = []

    def add(self, c: CopyKvPage, held: Held) -> None:
        """Add a copy."""
        self._rows.append(c.physical(held))

    def finish(self) -> CopyKvPageBatch:
        """Return the batch."""
        return CopyKvPageBatch(u32(self.lanes), *np.array(self._rows, np.int32).T)


def _pages_of_copy(c: CopyKvPage) -> Iterable[tuple[int, Iterable[int]]]:
    return ((PAGES, c.pages),)


COPY_KVPAGE: Final = EngineCall(
    Op.COPY_KVPAGE, Kind.COPY_KVPAGE, parse_copy, CopyConflicts, PackCopies, names=_pages_of_copy
)


# ---- mask_kvpage ----------------------------------------------------------------------------------------------------


class MaskKvPage(Command):
    """Sets the mask bits of a page: bit i hides token i."""

    __slots__ = ("bits", "page")
    kind = int(Kind.MASK_KVPAGE)

    def __init__(self, queue: CommandQueue, record: Record, arrived: float) -> None:
        super().__init__(queue, record, arrived)
        self.page = record.a
        self.bits = record.b


def parse_mask(queue: CommandQueue, record: Record, payload: memoryview, arrived: float) -> Command:
    """Parse `mask_kvpage`: any bits are allowed."""
    return MaskKvPage(queue, record, arrived)


class MaskConflicts:
    """Pages whose bits the batch sets for one queue."""

    __slots__ = ("_pages",)

    def __init__(self) -> None:
        self._pages: set[int] = set()

    def add(self, command: MaskKvPage) -> None:
        """Record the page of a command."""
        self._pages.add(command.page)

    def conflicts(self, candidate: MaskKvPage) -> bool:
        """Return whether the page's bits are set already."""
        return candidate.page in self._pages


class PackMasks:
    """Columns of a `mask_kvpage` batch."""

    def __init__(self) -> None:
        self.lanes: list[int] = []
        self._page: list[int] = []
        self._bits: list[int] = []

    def add(self, c: MaskKvPage, held: Held) -> None:
        """Add a command."""
        self._page.append(held[PAGES][c.page])
        self._bits.append(c.bits)

    def finish(self) -> MaskKvPageBatch:
        """Return the batch."""
        return MaskKvPageBatch(u32(self.lanes), i32(self._page), u32(self._bits))


def _page_of_mask(c: MaskKvPage) -> Iterable[tuple[int, Iterable[int]]]:
    return ((PAGES, (c.page,)),)


MASK_KVPAGE: Final = EngineCall(
    Op.MASK_KVPAGE, Kind.MASK_KVPAGE, parse_mask, MaskConflicts, PackMasks, names=_page_of_mask
)

ENGINE_CALLS: Final = (COPY_KVPAGE, MASK_KVPAGE)
