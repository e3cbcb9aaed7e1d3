"""Commands to columns: translates virtual ids to physical ones and packs a batch for the worker.

A command whose ids don't translate is handed to `fail` and left out; one whose queue is poisoned by then (perhaps by
that) is handed to `refuse`. What remains is the batch, and the list of its commands in the same order.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tartlet_common.abi import SAMPLE_PARAMS
from tartlet_common.engine.step import Batch
from tartlet_common.engine.step import CopyKvPage as CopyKvPageBatch
from tartlet_common.engine.step import EmbedTxt as EmbedTxtBatch
from tartlet_common.engine.step import Forward as ForwardBatch
from tartlet_common.engine.step import GetNextDist as GetNextDistBatch
from tartlet_common.engine.step import MaskKvPage as MaskKvPageBatch
from tartlet_common.engine.step import Sample as SampleBatch
from tartlet_common.errors.registry import InvalidArgument, TartletError, UnknownResource
from tartlet_control.calls.commands import (
    COPY_KVPAGE,
    EMBED_TXT,
    FORWARD,
    GET_NEXT_DIST,
    MASK_KVPAGE,
    SAMPLE,
    Command,
    CopyKvPage,
    EmbedTxt,
    Forward,
    GetNextDist,
    MaskKvPage,
    Sample,
)
from tartlet_control.tables.ledger import EMBEDS, PAGES, RESOURCE_NAMES, SLOTS
from tartlet_control.tables.programs import Held

Fail = Callable[[Command, TartletError], None]
Refuse = Callable[[Command], None]

_EMPTY_U8 = np.zeros(0, np.uint8)


def build(kind: int, commands: list[Command], fail: Fail, refuse: Refuse) -> tuple[Batch | None, list[Command]]:
    """The batch of `commands` (all of one kind) and those of them that are in it; None if none is."""
    kept: list[Command] = []
    pack = _PACKERS[kind]()
    add = pack.add
    for command in commands:
        queue = command.queue
        if queue.poison is not None:
            refuse(command)
            continue
        try:
            add(command, queue.place.held)
        except KeyError as e:
            fail(command, _unknown(command, queue.place.held, e.args[0]))
            continue
        except InvalidArgument as e:
            fail(command, e)
            continue
        pack.lanes.append(queue.lane)
        kept.append(command)
    return (pack.finish(), kept) if kept else (None, kept)


def _i32(values: list[int]) -> Any:
    return np.frombuffer(array("i", values), np.int32)


def _u32(values: list[int]) -> Any:
    return np.frombuffer(array("I", values), np.uint32)


def _unknown(command: Command, held: Held, missing: int) -> UnknownResource:
    """Which kind of thing `missing` should have been; asked only after a failure."""
    for pool, ids in _names(command):
        if missing in ids and missing not in held[pool]:
            return UnknownResource(kind=RESOURCE_NAMES[pool], id=missing)
    raise AssertionError(f"{missing} is in no list of {command}")


def _names(command: Command) -> Iterable[tuple[int, Iterable[int]]]:
    """(pool, virtual ids) that a command names."""
    match command:
        case EmbedTxt():
            return ((EMBEDS, command.embeds), (SLOTS, command.sources if command.from_slots else ()))
        case Forward():
            return ((PAGES, command.ikv), (EMBEDS, command.iemb), (PAGES, command.okv), (EMBEDS, command.oemb))
        case CopyKvPage():
            return ((PAGES, (command.src, command.dst)),)
        case MaskKvPage():
            return ((PAGES, (command.page,)),)
        case GetNextDist():
            return ((EMBEDS, command.embeds),)
        case Sample():
            return ((EMBEDS, (command.embed,)), (SLOTS, (command.slot,)))
    return ()


class _PackEmbedTxt:
    def __init__(self) -> None:
        self.lanes: list[int] = []
        self.indptr = [0]
        self.embed: list[int] = []
        self.token: list[int] = []
        self.slot: list[int] = []
        self.position: list[int] = []

    def add(self, c: EmbedTxt, held: Held) -> None:
        embeds = held[EMBEDS]
        if c.tokens == 1:
            embed = embeds[c.embeds[0]]
            if c.from_slots:
                slot, token = held[SLOTS][c.sources[0]], -1
            else:
                slot, token = -1, c.sources[0]
            self.embed.append(embed)
            self.token.append(token)
            self.slot.append(slot)
            self.position.append(c.positions[0])
        else:
            physical = [embeds[v] for v in c.embeds]
            none = [-1] * c.tokens
            if c.from_slots:
                slots = held[SLOTS]
                self.slot += [slots[v] for v in c.sources]
                self.token += none
            else:
                self.token += c.sources
                self.slot += none
            self.embed += physical
            self.position += c.positions
        self.indptr.append(len(self.embed))

    def finish(self) -> EmbedTxtBatch:
        return EmbedTxtBatch(
            _u32(self.lanes), _i32(self.indptr), _i32(self.embed), _i32(self.token), _i32(self.slot),
            _i32(self.position),
        )  # fmt: skip


class _PackForward:
    def __init__(self) -> None:
        self.lanes: list[int] = []
        self.ikv: list[int] = []
        self.ikv_indptr = [0]
        self.iemb: list[int] = []
        self.iemb_indptr = [0]
        self.okv: list[int] = []
        self.okv_indptr = [0]
        self.offset: list[int] = []
        self.oemb: list[int] = []
        self.oemb_indptr = [0]
        self.mask = bytearray()
        self.mask_indptr = [0]

    def add(self, c: Forward, held: Held) -> None:
        page, embed = held[PAGES].__getitem__, held[EMBEDS].__getitem__
        ikv, okv = [*map(page, c.ikv)], [*map(page, c.okv)]
        iemb, oemb = [*map(embed, c.iemb)], [*map(embed, c.oemb)]
        # A page may be named twice; named again and again it would cost the engine what no quota allows.
        if len(ikv) > 2 * len(held[PAGES]):
            raise InvalidArgument(argument="ikv", detail=f"{len(ikv)} pages; the program holds {len(held[PAGES])}")
        self.ikv += ikv
        self.ikv_indptr.append(len(self.ikv))
        self.iemb += iemb
        self.iemb_indptr.append(len(self.iemb))
        self.okv += okv
        self.okv_indptr.append(len(self.okv))
        self.offset.append(c.okv_offset)
        self.oemb += oemb
        self.oemb_indptr.append(len(self.oemb))
        if c.mask:
            self.mask += c.mask
        self.mask_indptr.append(len(self.mask))

    def finish(self) -> ForwardBatch:
        return ForwardBatch(
            _u32(self.lanes),
            _i32(self.ikv), _i32(self.ikv_indptr),
            _i32(self.iemb), _i32(self.iemb_indptr),
            _i32(self.okv), _i32(self.okv_indptr), _i32(self.offset),
            _i32(self.oemb), _i32(self.oemb_indptr),
            np.frombuffer(bytes(self.mask), np.uint8) if self.mask else _EMPTY_U8, _i32(self.mask_indptr),
        )  # fmt: skip


class _PackCopyKvPage:
    def __init__(self) -> None:
        self.lanes: list[int] = []
        self.rows: list[tuple[int, int, int, int, int]] = []

    def add(self, c: CopyKvPage, held: Held) -> None:
        pages = held[PAGES]
        self.rows.append((pages[c.src], pages[c.dst], c.src_offset, c.dst_offset, c.length))

    def finish(self) -> CopyKvPageBatch:
        return CopyKvPageBatch(_u32(self.lanes), *np.array(self.rows, np.int32).T)


class _PackMaskKvPage:
    def __init__(self) -> None:
        self.lanes: list[int] = []
        self.page: list[int] = []
        self.bits: list[int] = []

    def add(self, c: MaskKvPage, held: Held) -> None:
        self.page.append(held[PAGES][c.page])
        self.bits.append(c.bits)

    def finish(self) -> MaskKvPageBatch:
        return MaskKvPageBatch(_u32(self.lanes), _i32(self.page), _u32(self.bits))


class _PackGetNextDist:
    def __init__(self) -> None:
        self.lanes: list[int] = []
        self.indptr = [0]
        self.embed: list[int] = []
        self.top_k: list[int] = []

    def add(self, c: GetNextDist, held: Held) -> None:
        embeds = held[EMBEDS]
        self.embed += [embeds[v] for v in c.embeds]
        self.indptr.append(len(self.embed))
        self.top_k.append(c.top_k)

    def finish(self) -> GetNextDistBatch:
        return GetNextDistBatch(_u32(self.lanes), _i32(self.indptr), _i32(self.embed), _i32(self.top_k))


class _PackSample:
    def __init__(self) -> None:
        self.lanes: list[int] = []
        self.embed: list[int] = []
        self.slot: list[int] = []
        self.params: list[bytes] = []
        self.stops: list[bytes] = []

    def add(self, c: Sample, held: Held) -> None:
        embed, slot = held[EMBEDS][c.embed], held[SLOTS][c.slot]
        self.embed.append(embed)
        self.slot.append(slot)
        self.params.append(c.params)
        self.stops.append(c.stop)

    def finish(self) -> SampleBatch:
        params = np.frombuffer(b"".join(self.params), SAMPLE_PARAMS)
        indptr = np.zeros(len(params) + 1, np.int32)
        np.cumsum(params["n_stop"], out=indptr[1:])
        return SampleBatch(
            lane=_u32(self.lanes),
            embed=_i32(self.embed),
            slot=_i32(self.slot),
            temperature=np.ascontiguousarray(params["temperature"]),
            top_k=params["top_k"].astype(np.int32),
            top_p=np.ascontiguousarray(params["top_p"]),
            min_p=np.ascontiguousarray(params["min_p"]),
            seed=np.ascontiguousarray(params["seed"]),
            draw=np.ascontiguousarray(params["draw"]),
            stop=np.frombuffer(b"".join(self.stops), np.int32),
            stop_indptr=indptr,
        )


_PACKERS: dict[int, type[Any]] = {
    EMBED_TXT: _PackEmbedTxt,
    FORWARD: _PackForward,
    COPY_KVPAGE: _PackCopyKvPage,
    MASK_KVPAGE: _PackMaskKvPage,
    GET_NEXT_DIST: _PackGetNextDist,
    SAMPLE: _PackSample,
}
