"""How a guest's record becomes a command: what it says is checked here, what it names when it is dispatched."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tartlet_common.abi import DEFAULT_TOP_K, Op
from tartlet_common.engine.spec import EngineSpec
from tartlet_common.errors.registry import (
    ContextTooLong,
    FrameTooLarge,
    InvalidArgument,
    MalformedSubmission,
    UnknownOperation,
    UnsupportedTrait,
)
from tartlet_control.calls.commands import (
    Alloc,
    Command,
    CopyKvPage,
    Dealloc,
    EmbedTxt,
    Forward,
    GetNextDist,
    MaskKvPage,
    Reset,
    Sample,
    Synchronize,
)
from tartlet_control.tables.ledger import EMBEDS, PAGES, SLOTS

if TYPE_CHECKING:
    from tartlet_control.tables.programs import CommandQueue

MAX_TOKENS: Final = 1 << 16
"""Most tokens of one command: its columns fit a message between processes."""
MAX_PAGES: Final = 1 << 17
"""Longest page list of one forward, and most ids of one alloc or dealloc."""
MAX_ANSWER_BYTES: Final = 3 << 20
"""Largest answer to get_next_dist."""
MAX_COMMAND_BYTES: Final = (3 << 20) + 4096
"""Largest command: one that runs alone still leaves room in its step's message for what the step clears."""

Record = tuple[int, int, int, int, int, int, int, int, int]
"""op, flags, ticket, queue, a, b, c, offset, length: one row of abi.RECORD."""
_Parser = Callable[["CommandQueue", float, Record, memoryview], Command]

_SAMPLE_PARAMS = struct.Struct("<fIffQII")
_I32_MAX: Final = 0x7FFF_FFFF
_MAX_TEMPERATURE: Final = 1_000_000


def parse(queue: CommandQueue, arrived: float, record: Record, payload: memoryview) -> Command:
    """The command that a record of `queue` asks for; `payload` is that record's own bytes.

    Raises:
        UnknownOperation: no queue takes this operation.
        MalformedSubmission: the payload's length isn't what the operation needs.
        InvalidArgument, ContextTooLong, UnsupportedTrait: an argument the model or this release doesn't allow.
        FrameTooLarge: it is larger than a step's message can hold.
    """
    parser = _PARSERS.get(record[0])
    if parser is None:
        raise UnknownOperation(op=record[0])
    command = parser(queue, arrived, record, payload)
    if command.size > MAX_COMMAND_BYTES:
        raise FrameTooLarge(size=command.size, what="bytes in a command", limit=MAX_COMMAND_BYTES)
    return command


def _words(payload: memoryview) -> list[int]:
    if len(payload) & 3:
        raise MalformedSubmission(detail=f"a list of {len(payload)} bytes isn't whole u32s")
    return payload.cast("I").tolist()


def _differ(argument: str, ids: list[int]) -> None:
    if len(set(ids)) != len(ids):
        raise InvalidArgument(argument=argument, detail="an id stands in it twice")


def _synchronize(queue: CommandQueue, arrived: float, record: Record, payload: memoryview) -> Command:
    return Synchronize(queue, record[2], record[1] & 1, arrived)


def _reset(queue: CommandQueue, arrived: float, record: Record, payload: memoryview) -> Command:
    return Reset(queue, record[2], record[1] & 1, arrived)


def _alloc(queue: CommandQueue, arrived: float, record: Record, payload: memoryview) -> Command:
    ids = _words(payload)
    if len(ids) > MAX_PAGES:
        raise InvalidArgument(argument="ids", detail=f"{len(ids)} at once, the limit is {MAX_PAGES}")
    if len(ids) > 1:
        _differ("ids", ids)
    make, pool = _POOL_OPS[record[0]]
    return make(queue, record[2], record[1] & 1, arrived, pool, ids)


def _embed_txt(queue: CommandQueue, arrived: float, record: Record, payload: memoryview) -> Command:
    n = record[4]
    if n == 0 or n > MAX_TOKENS:
        raise InvalidArgument(argument="tokens", detail=f"{n} in one call, allowed are 1 to {MAX_TOKENS}")
    if len(payload) != 12 * n:
        raise MalformedSubmission(detail=f"embed_txt of {n} tokens needs {12 * n} payload bytes, not {len(payload)}")
    if record[5] > 1:
        raise InvalidArgument(argument="source", detail=f"{record[5]} is neither 0 (tokens) nor 1 (slots)")
    command = EmbedTxt(queue, record[2], record[1] & 1, arrived, payload.cast("I").tolist(), record[5])
    spec = queue.spec
    furthest = max(command.positions)
    if furthest >= spec.max_position:
        raise ContextTooLong(position=furthest, limit=spec.max_position)
    if not record[5] and max(command.sources) >= spec.vocab_size:
        worst = max(command.sources)
        raise InvalidArgument(argument="token", detail=f"{worst} is not in the vocabulary of {spec.vocab_size}")
    if n > 1:
        _differ("embeds", command.embeds)
    return command


def _forward(queue: CommandQueue, arrived: float, record: Record, payload: memoryview) -> Command:
    size = len(payload)
    if size < 16:
        raise MalformedSubmission(detail=f"forward needs 16 payload bytes or more, not {size}")
    if record[6] == 0:  # no mask: the usual case is all words
        words, mask = _words(payload), b""
        n_ikv, n_iemb, n_okv, n_oemb = words[:4]
    else:
        n_ikv, n_iemb, n_okv, n_oemb = payload[:16].cast("I").tolist()
        lists_end = 16 + 4 * (n_ikv + n_iemb + n_okv + n_oemb)
        words, mask = payload[: min(lists_end, size & ~3)].cast("I").tolist(), bytes(payload[lists_end:])
    a = 4 + n_ikv
    b = a + n_iemb
    c = b + n_okv
    d = c + n_oemb
    if d != len(words):
        raise MalformedSubmission(detail=f"forward's lists of {d - 4} ids don't fill {len(words) - 4}")
    lists = (words[4:a], words[a:b], words[b:c], words[c:d])
    _check_forward(queue.spec, lists, record)
    if record[6]:
        mask = _trimmed(n_iemb, n_ikv * queue.spec.page_size + n_iemb, mask)
    return Forward(queue, record[2], record[1] & 1, arrived, lists, record[4], mask)


def _check_forward(spec: EngineSpec, lists: tuple[list[int], list[int], list[int], list[int]], record: Record) -> None:
    n_ikv, n_iemb, n_okv, n_oemb = map(len, lists)
    if not 1 <= n_iemb <= MAX_TOKENS:
        raise InvalidArgument(argument="iemb", detail=f"{n_iemb} embeds in one call, allowed are 1 to {MAX_TOKENS}")
    if n_ikv > MAX_PAGES:
        raise InvalidArgument(argument="ikv", detail=f"{n_ikv} pages in one call, allowed are {MAX_PAGES}")
    if n_oemb > n_iemb:
        raise InvalidArgument(argument="oemb", detail=f"{n_oemb} outputs of {n_iemb} input embeds")
    room = n_okv * spec.page_size
    if n_okv and record[4] + n_iemb > room:
        raise InvalidArgument(
            argument="okv", detail=f"{n_iemb} tokens at offset {record[4]} don't fit {n_okv} pages of {spec.page_size}"
        )
    if not n_okv and record[4]:
        raise InvalidArgument(argument="okv_offset", detail="an offset without pages to write")
    if record[5]:
        raise UnsupportedTrait(model=spec.model, trait="Adapter")
    if n_okv > 1:
        _differ("okv", lists[2])
    if n_oemb > 1:
        _differ("oemb", lists[3])


def _trimmed(rows: int, columns: int, mask: bytes) -> bytes:
    """The mask's own bytes, without what a guest may have added to fill a word."""
    need = (rows * columns + 7) // 8
    if not need <= len(mask) <= need + 3:
        raise InvalidArgument(argument="mask", detail=f"{rows} x {columns} bits are {need} bytes, not {len(mask)}")
    return mask[:need]


def _copy_kvpage(queue: CommandQueue, arrived: float, record: Record, payload: memoryview) -> Command:
    if len(payload) != 8:
        raise MalformedSubmission(detail=f"copy_kvpage needs 8 payload bytes, not {len(payload)}")
    src, dst = payload.cast("I").tolist()
    src_offset, dst_offset, length = record[4:7]
    page_size = queue.spec.page_size
    if max(src_offset, dst_offset) + length > page_size:
        raise InvalidArgument(argument="size", detail=f"{length} tokens pass the page's end of {page_size}")
    return CopyKvPage(queue, record[2], record[1] & 1, arrived, (src, dst), (src_offset, dst_offset, length))


def _mask_kvpage(queue: CommandQueue, arrived: float, record: Record, payload: memoryview) -> Command:
    return MaskKvPage(queue, record[2], record[1] & 1, arrived, record[4], record[5])


def _get_next_dist(queue: CommandQueue, arrived: float, record: Record, payload: memoryview) -> Command:
    embeds = _words(payload)
    spec = queue.spec
    top_k = record[4] or min(DEFAULT_TOP_K, spec.top_k_limit)
    if not embeds:
        raise InvalidArgument(argument="embeds", detail="none given")
    if top_k > spec.top_k_limit:
        raise InvalidArgument(argument="top_k", detail=f"{top_k}, the engine's limit is {spec.top_k_limit}")
    if len(embeds) > spec.max_batch_tokens:
        raise InvalidArgument(
            argument="embeds", detail=f"{len(embeds)} in one call, the engine's limit is {spec.max_batch_tokens}"
        )
    if 8 * len(embeds) * top_k > MAX_ANSWER_BYTES:
        raise InvalidArgument(
            argument="embeds", detail=f"{len(embeds)} distributions of {top_k} pass {MAX_ANSWER_BYTES} bytes"
        )
    return GetNextDist(queue, record[2], record[1] & 1, arrived, embeds, top_k)


def _sample(queue: CommandQueue, arrived: float, record: Record, payload: memoryview) -> Command:
    size = len(payload)
    if size < 32:
        raise MalformedSubmission(detail=f"sample needs 32 payload bytes or more, not {size}")
    temperature, top_k, top_p, min_p, _, _, n_stop = _SAMPLE_PARAMS.unpack_from(payload)
    if size != 32 + 4 * n_stop:
        raise MalformedSubmission(detail=f"sample with {n_stop} stop tokens needs {32 + 4 * n_stop} bytes, not {size}")
    if not 0.0 <= temperature <= _MAX_TEMPERATURE:
        detail = f"{temperature} is not within 0 to {_MAX_TEMPERATURE}"
        raise InvalidArgument(argument="temperature", detail=detail)
    if not (0.0 < top_p <= 1.0 and 0.0 <= min_p <= 1.0):
        raise InvalidArgument(argument="top_p, min_p", detail=f"{top_p}, {min_p} are not probabilities")
    if top_k > _I32_MAX:
        raise InvalidArgument(argument="top_k", detail=f"{top_k} is too large")
    if n_stop:
        worst = max(payload[32:].cast("I").tolist())
        if worst > _I32_MAX:
            raise InvalidArgument(argument="stop", detail=f"{worst} is no token")
    raw = bytes(payload)
    return Sample(queue, record[2], record[1] & 1, arrived, record[4], record[5], raw[:32], raw[32:])


_POOL_OPS: dict[int, tuple[type[Alloc], int]] = {
    int(Op.ALLOC_KVPAGE): (Alloc, PAGES),
    int(Op.DEALLOC_KVPAGE): (Dealloc, PAGES),
    int(Op.ALLOC_EMB): (Alloc, EMBEDS),
    int(Op.DEALLOC_EMB): (Dealloc, EMBEDS),
    int(Op.ALLOC_SLOT): (Alloc, SLOTS),
    int(Op.DEALLOC_SLOT): (Dealloc, SLOTS),
}
_PARSERS: dict[int, _Parser] = {
    int(Op.SYNCHRONIZE): _synchronize,
    int(Op.RESET): _reset,
    **dict.fromkeys(_POOL_OPS, _alloc),
    int(Op.EMBED_TXT): _embed_txt,
    int(Op.FORWARD): _forward,
    int(Op.COPY_KVPAGE): _copy_kvpage,
    int(Op.MASK_KVPAGE): _mask_kvpage,
    int(Op.GET_NEXT_DIST): _get_next_dist,
    int(Op.SAMPLE): _sample,
}
QUEUED: Final = frozenset(_PARSERS)
"""Operations that take their turn in a queue (RESET among them: it must not overtake what it follows)."""
