"""What the fake engine does with a batch of each kind. A kind without a handler fails the import of this module.

Within a batch, embeds and slots are read before they are written, as a tensor program does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tartlet_common.engine.step import (
    BatchResult,
    CopyKvPage,
    EmbedTxt,
    Forward,
    GetNextDist,
    Kind,
    MaskKvPage,
    MaskTable,
    Sample,
    Status,
    check_covers,
)
from tartlet_common.errors.registry import ContextTooLong, EngineFailure, InvalidArgument, TartletError, UnknownAdapter
from tartlet_worker.fake import model
from tartlet_worker.fake.options import changed, following, tell
from tartlet_worker.fake.state import EngineBroken, FakeState
from tartlet_worker.history import Told, asked_columns, histories_full, options_of, with_forced
from tartlet_worker.sampling.philox import uniform

Bools = npt.NDArray[np.bool_]
FEW: Final = 4
"""So many queries look at every column; of more, as in a prompt, each would take as long as all with running sums."""


class Answers:
    """Columns of one batch's result, filled in by a handler."""

    def __init__(self, commands: int) -> None:
        self.status = np.zeros(commands, np.uint8)
        self.error = np.zeros(commands, np.uint32)
        self.token = np.full(commands, -1, np.int32)
        self.ended = np.zeros(commands, np.uint8)
        self.logprob = np.zeros(commands, np.float32)
        self.dist_indptr = np.zeros(0, np.int32)
        self.dist_tokens: list[npt.NDArray[np.int32]] = []
        self.probs: list[model.F32] = []
        self.sampled = False
        self._detail: list[str] = []

    def fail(self, b: int, error: TartletError) -> None:
        """Command `b` failed with `error`; its fields travel as JSON."""
        self.status[b] = Status.FAILED
        self.error[b] = error.number
        self._detail.append(error.to_json().decode())

    def finish(self) -> BatchResult:
        """The result; columns that the kind doesn't answer are empty."""
        some = slice(None) if self.sampled else slice(0)
        return BatchResult(
            status=self.status,
            error=self.error,
            token=self.token[some],
            ended=self.ended[some],
            logprob=self.logprob[some],
            dist_indptr=self.dist_indptr,
            dist_token=np.concatenate([np.zeros(0, np.int32), *self.dist_tokens]),
            dist_prob=np.concatenate([np.zeros(0, np.float32), *self.probs]),
            detail=tuple(self._detail),
        )


def _admit(state: FakeState, lane: npt.NDArray[np.uint32], b: int, out: Answers) -> bool:
    """Return whether command `b` may run; a command of a poisoned lane is refused."""
    if int(lane[b]) in state.poisoned:
        out.status[b] = Status.REFUSED
        return False
    return True


def _fail(state: FakeState, lane: npt.NDArray[np.uint32], b: int, error: TartletError, out: Answers) -> None:
    state.poisoned.add(int(lane[b]))
    out.fail(b, error)


def embed_txt(state: FakeState, x: EmbedTxt, out: Answers) -> None:
    """Run an `embed_txt` batch."""
    from_slot = x.slot >= 0
    tokens = np.where(from_slot, state.slot[x.slot], x.token)
    ended = from_slot & state.slot_ended[x.slot]
    for b in range(len(x.lane)):
        if not _admit(state, x.lane, b, out):
            continue
        span = slice(int(x.indptr[b]), int(x.indptr[b + 1]))
        error = _embed_fault(state, tokens[span], x.position[span])
        if error is not None:
            _fail(state, x.lane, b, error, out)
        elif ended[span].any():
            out.status[b] = Status.SKIPPED
            state.emb_ended[x.embed[span]] = True
        else:
            state.emb[x.embed[span]] = model.token_value(tokens[span], state.options.seed)
            state.emb_pos[x.embed[span]] = x.position[span]
            state.emb_ended[x.embed[span]] = False


def _embed_fault(
    state: FakeState, tokens: npt.NDArray[np.int32], positions: npt.NDArray[np.int32]
) -> TartletError | None:
    o = state.options
    if (tokens == o.break_token).any():
        raise EngineBroken(f"token {o.break_token} breaks this engine")
    if (tokens == o.fail_token).any():
        return EngineFailure(detail=f"token {o.fail_token} fails on this engine")
    bad = tokens[(tokens < 0) | (tokens >= model.VOCAB_SIZE)]
    if len(bad):
        return InvalidArgument(argument="token", detail=f"{bad[0]} is not in the vocabulary of {model.VOCAB_SIZE}")
    far = positions[(positions < 0) | (positions >= o.max_position)]
    if len(far):
        return ContextTooLong(position=int(far[0]), limit=o.max_position)
    return None


def forward(state: FakeState, x: Forward, out: Answers) -> None:
    """Run a `forward` batch. All embeds are read before one is written."""
    emb, emb_pos, emb_ended = state.emb.copy(), state.emb_pos.copy(), state.emb_ended.copy()
    for b in range(len(x.lane)):
        if not _admit(state, x.lane, b, out):
            continue
        iemb = x.iemb[x.iemb_indptr[b] : x.iemb_indptr[b + 1]]
        oemb = x.oemb[x.oemb_indptr[b] : x.oemb_indptr[b + 1]]
        ikv, okv, offset, limit = _pages(state, x, b)
        if emb_ended[iemb].any():
            out.status[b] = Status.SKIPPED
            state.emb_ended[oemb] = True
            continue
        adapter = int(x.adapter[b]) if len(x.adapter) else 0
        error = _forward_fault(state, len(iemb), len(okv), len(oemb), offset, adapter)
        if error is not None:
            _fail(state, x.lane, b, error, out)
            continue
        value = model.adapted(emb[iemb], adapter)
        new, positions = model.column(value, emb_pos[iemb]), emb_pos[iemb]
        pages, slots = _targets(state, okv, offset, len(iemb))
        size = state.options.page_size
        columns = (ikv.astype(np.int64)[:, None] * size + np.arange(size)).ravel()[:limit]
        columns[_unseen(state, x, b, columns)] = -1
        mask = _mask(x, b, len(iemb), len(columns) + len(iemb))
        sums = _attend(state, columns, pages * size + slots, new, positions, mask)
        state.kv[pages, slots] = new[: len(pages)]
        state.pos[pages, slots] = positions[: len(pages)]
        state.written[pages, slots] = True
        last = len(iemb) - len(oemb)
        state.emb[oemb] = model.mix(sums + value)[last:]
        state.emb_pos[oemb] = positions[last:]
        state.emb_ended[oemb] = False
        state.tokens += len(iemb)


def _pages(
    state: FakeState, x: Forward, b: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], int, int | None]:
    """Return the pages that command `b` reads and writes, its first slot, and how many columns are seen (None: all)."""
    offset = int(x.okv_offset[b])
    if not len(x.table) or x.table[b] < 0:
        ikv = x.ikv[x.ikv_indptr[b] : x.ikv_indptr[b + 1]]
        return ikv, x.okv[x.okv_indptr[b] : x.okv_indptr[b + 1]], offset, None
    table = int(x.table[b])
    rows = state.tables.rows[table, : int(state.tables.count[table])]
    return rows, rows, offset, offset


def _unseen(state: FakeState, x: Forward, b: int, columns: npt.NDArray[np.int64]) -> Bools:
    """Return [C]: which columns of command `b` its table hides, or has dropped."""
    unseen = columns < 0
    marks = state.tables.hidden.get(int(x.table[b])) if len(x.table) and x.table[b] >= 0 else None
    if marks is not None:
        unseen[: len(marks)] |= marks[: len(columns)]
    return unseen


def _forward_fault(state: FakeState, n: int, pages: int, n_out: int, offset: int, adapter: int) -> TartletError | None:
    if adapter and adapter not in state.adapters:
        available = [known.name for known in state.adapters.values()]
        return UnknownAdapter(model=state.options.model, adapter=adapter, available=available)
    if n == 0 or n_out > n:
        return InvalidArgument(argument="oemb", detail=f"{n_out} outputs of {n} input embeds")
    if pages and offset + n > pages * state.options.page_size:
        return InvalidArgument(
            argument="okv",
            detail=f"{n} tokens at offset {offset} don't fit {pages} pages of {state.options.page_size}",
        )
    return None


def _targets(
    state: FakeState, okv: npt.NDArray[np.int32], offset: int, n: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Page and slot of each of `n` tokens; empty if the command writes no pages."""
    if not len(okv):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    at = offset + np.arange(n)
    return okv[at // state.options.page_size].astype(np.int64), at % state.options.page_size


def _attend(
    state: FakeState,
    flat: npt.NDArray[np.int64],  # [C - n] flat slots that it reads, -1 for those that it doesn't see
    writes: npt.NDArray[np.int64],  # [n] flat slots that this call writes: ignored as context
    new: model.U64,  # [n]
    positions: npt.NDArray[np.int32],  # [n]
    mask: Bools | None,  # [n, C]
) -> model.U64:
    """[n]: the sum of the visible columns of each query."""
    valid = state.written.ravel()[flat] & ~state.hidden.ravel()[flat] & (flat >= 0)
    if len(writes):
        valid &= ~np.isin(flat, writes)
    valid = np.concatenate([valid, np.ones(len(new), np.bool_)])
    columns = np.concatenate([state.kv.ravel()[flat], new])  # [C]
    column_pos = np.concatenate([state.pos.ravel()[flat], positions])  # [C]
    if mask is None and len(new) > FEW:
        return model.sums_before(columns[valid], column_pos[valid], positions)
    seen = column_pos[None, :] <= positions[:, None] if mask is None else mask
    return np.asarray(np.where(seen & valid[None, :], columns[None, :], np.uint64(0)).sum(axis=1, dtype=np.uint64))


def copy_kvpage(state: FakeState, x: CopyKvPage, out: Answers) -> None:
    """Run a `copy_kvpage` batch."""
    for b in range(len(x.lane)):
        if not _admit(state, x.lane, b, out):
            continue
        size, src, dst = int(x.size[b]), int(x.src_offset[b]), int(x.dst_offset[b])
        if max(src, dst) + size > state.options.page_size:
            limit = state.options.page_size
            error = InvalidArgument(argument="size", detail=f"{size} tokens pass the page's end of {limit}")
            _fail(state, x.lane, b, error, out)
            continue
        for table in (state.kv, state.pos, state.written, state.hidden):
            table[x.dst[b], dst : dst + size] = table[x.src[b], src : src + size].copy()


def mask_kvpage(state: FakeState, x: MaskKvPage, out: Answers) -> None:
    """Run a `mask_kvpage` batch."""
    shifts = np.arange(state.options.page_size, dtype=np.uint32)
    for b in range(len(x.lane)):
        if _admit(state, x.lane, b, out):
            state.hidden[x.page[b]] = (x.bits[b] >> shifts) & np.uint32(1)


def mask_table(state: FakeState, x: MaskTable, out: Answers) -> None:
    """Run a `mask_table` batch."""
    for b in range(len(x.lane)):
        if _admit(state, x.lane, b, out):
            state.tables.mask(int(x.table[b]), int(x.first[b]), int(x.count[b]), hide=bool(x.hidden[b]))


def get_next_dist(state: FakeState, x: GetNextDist, out: Answers) -> None:
    """Run a `get_next_dist` batch."""
    logp = model.log_softmax(model.logits(state.emb[x.embed])) if len(x.embed) else np.zeros((0, 1))
    counts = np.zeros(len(x.embed), np.int32)
    tokens: list[npt.NDArray[np.int64]] = []
    for b in range(len(x.lane)):
        if not _admit(state, x.lane, b, out):
            continue
        span = range(int(x.indptr[b]), int(x.indptr[b + 1]))
        if state.emb_ended[x.embed[span.start : span.stop]].any():
            out.status[b] = Status.SKIPPED
            continue
        k = min(int(x.top_k[b]), model.VOCAB_SIZE)
        for e in span:
            best = np.argsort(-logp[e], kind="stable")[:k]
            counts[e] = len(best)
            tokens.append(best)
            out.probs.append(np.exp(logp[e][best]).astype(np.float32))
    out.dist_indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    out.dist_tokens = [t.astype(np.int32) for t in tokens]


def sample(state: FakeState, x: Sample, out: Answers) -> None:
    """Run a `sample` batch."""
    logits = model.logits(state.emb[x.embed])
    logp = model.log_softmax(logits)
    u = uniform(x.seed, state.emb_pos[x.embed], x.draw)
    out.sampled = True
    asking = options_of(x) if len(x.with_options) else {}
    told: dict[int, Told] = {}
    for b in range(len(x.lane)):
        if not _admit(state, x.lane, b, out):
            continue
        slot = int(x.slot[b])
        if state.emb_ended[x.embed[b]]:
            out.status[b] = Status.SKIPPED
            state.slot_ended[slot] = True
            continue
        asked = asking.get(b)
        if asked is not None and not state.histories.room_for(asked):
            _fail(state, x.lane, b, histories_full(b), out)
            continue
        rule = model.SampleRule(float(x.temperature[b]), int(x.top_k[b]), float(x.top_p[b]), float(x.min_p[b]))
        allowed = None
        if asked is not None and asked.grammar is not None:
            allowed, error = following(state, slot, asked)
            if error is not None:
                _fail(state, x.lane, b, error, out)
                continue
        weighed = logp[b] if asked is None else model.log_softmax(changed(state, slot, logits[b], asked, allowed))
        token = model.draw(weighed, rule, float(u[b]))
        if asked is not None:
            told[b] = tell(state, slot, token, logp[b], asked)
        ended = token in x.stop[x.stop_indptr[b] : x.stop_indptr[b + 1]]
        if asked is not None and allowed is not None and state.matchers is not None:
            after = state.matchers.advance([(slot, token)], (slot,) if asked.forced else ())[0]
            ended |= after.stopped
            told[b] = with_forced(told[b], after.forced)
        state.slot[slot], state.slot_ended[slot] = token, ended
        out.token[b], out.ended[b], out.logprob[b] = token, ended, logp[b, token]
    if asking:
        out.dist_indptr, ids, values = asked_columns(asking, told)
        out.dist_tokens, out.probs = [ids], [values]


def _mask(x: Forward, b: int, rows: int, columns: int) -> Bools | None:
    """[rows, columns] of command `b`, None if it brought no mask."""
    start, end = int(x.mask_indptr[b]), int(x.mask_indptr[b + 1])
    if start == end:
        return None
    bits = np.unpackbits(x.mask_bits[start:end], bitorder="little", count=rows * columns)
    return bits.astype(np.bool_).reshape(rows, columns)


HANDLERS: Final[dict[int, Callable[[FakeState, Any, Answers], None]]] = {
    Kind.EMBED_TXT: embed_txt,
    Kind.FORWARD: forward,
    Kind.COPY_KVPAGE: copy_kvpage,
    Kind.MASK_KVPAGE: mask_kvpage,
    Kind.MASK_TABLE: mask_table,
    Kind.GET_NEXT_DIST: get_next_dist,
    Kind.SAMPLE: sample,
}
check_covers(HANDLERS, Kind, __name__)
