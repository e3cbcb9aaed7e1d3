"""`FakeEngine`: a small, real engine without torch, for tests and for a first look without a model.

It obeys what a backend must obey: `forward` as in docs/abi.md (columns, valid and mask bits, positions, masks,
okv_offset), a failed command poisons its lane, ended slots and embeds skip, every command is answered. Within a batch
it reads all embeds and slots before it writes any, as a tensor program does: a scheduler that batches a reader with its
writer gets other text from it. Time can be added (`step_s`, `token_s`) and commands can be made to fail.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import psutil

from tartlet_common.engine import defaults
from tartlet_common.engine.spec import EngineSpec
from tartlet_common.engine.step import (
    Batch,
    BatchResult,
    CopyKvPage,
    EmbedTxt,
    Forward,
    GetNextDist,
    MaskKvPage,
    Sample,
    Status,
    Step,
    StepResult,
)
from tartlet_common.errors.registry import (
    ContextTooLong,
    EngineFailure,
    InvalidArgument,
    OutOfDeviceMemory,
    TartletError,
)
from tartlet_worker.engine import nobody
from tartlet_worker.fake import model
from tartlet_worker.sampling.philox import uniform

Bools = npt.NDArray[np.bool_]

_SLOT_BYTES = 14  # of a page, as `reset` makes them


class EngineBroken(Exception):
    """Raised by `FakeEngine.step` on `break_token`: the engine itself is at fault, as a device error would be."""


@dataclass(frozen=True, slots=True)
class FakeOptions:
    """What a fake engine is like."""

    model: str = "fake"
    page_size: int = defaults.PAGE_SIZE
    num_pages: int = 4096
    num_embeds: int = defaults.NUM_EMBEDS
    num_slots: int = defaults.NUM_SLOTS
    max_position: int = 1 << 20
    max_batch_tokens: int = defaults.MAX_BATCH_TOKENS
    max_batch_commands: int = defaults.MAX_BATCH_COMMANDS
    seed: int = 0  # another seed is another model
    step_s: float = 0.0  # time added to every step
    token_s: float = 0.0  # and to every token that goes through the layers
    fail_token: int = -1  # embedding this token id fails its command (EngineFailure)
    break_token: int = -1  # embedding this token id breaks the engine


class FakeEngine:
    """An engine whose next token is a function of the visible (token, position) columns.

    Raises:
        OutOfDeviceMemory: its pages don't fit into memory.

    Example:
        >>> engine = FakeEngine(FakeOptions(page_size=4, num_pages=8))
        >>> engine.spec.family, engine.spec.vocab_size
        ('fake', 260)
    """

    def __init__(self, options: FakeOptions, sleep: Callable[[float], None] = time.sleep) -> None:
        self._options, self._sleep = options, sleep
        self._spec = _spec(options)
        asked, memory = options.num_pages * options.page_size * _SLOT_BYTES, psutil.virtual_memory()
        try:
            if asked > memory.total:
                raise MemoryError  # a kernel that overcommits doesn't
            self.reset()
        except MemoryError as e:
            raise OutOfDeviceMemory(device="cpu", asked_bytes=asked, free_bytes=memory.available) from e

    @property
    def spec(self) -> EngineSpec:
        """Facts for Hello."""
        return self._spec

    def tokenizer_json(self) -> bytes:
        """One token a byte, four specials."""
        return model.tokenizer_json()

    def reset(self) -> None:
        """Forget everything."""
        o = self._options
        pages = (o.num_pages, o.page_size)
        self._kv = np.zeros(pages, np.uint64)  # [P, page] what each slot adds to a query's sum
        self._pos = np.zeros(pages, np.int32)  # [P, page]
        self._written = np.zeros(pages, np.bool_)  # [P, page]
        self._hidden = np.zeros(pages, np.bool_)  # [P, page] mask_kvpage's bits
        self._emb = np.zeros(o.num_embeds, np.uint64)
        self._emb_pos = np.zeros(o.num_embeds, np.int32)
        self._emb_ended = np.zeros(o.num_embeds, np.bool_)
        self._slot = np.zeros(o.num_slots, np.int32)
        self._slot_ended = np.zeros(o.num_slots, np.bool_)
        self._poisoned: set[int] = set()
        self._tokens = 0  # through the layers, this step

    def step(self, step: Step, computing: Callable[[], None] = nobody) -> StepResult:
        """Run the batches in order.

        Raises:
            EngineBroken: a command embedded `break_token`.
        """
        start = time.perf_counter()
        self._clear(step)
        self._tokens = 0
        results = tuple(self._run(batch) for batch in step.batches)
        added_s = self._options.step_s + self._options.token_s * self._tokens
        if added_s > 0:
            computing()
            self._sleep(added_s)
        return StepResult(step.number, results, self._tokens, time.perf_counter() - start)

    def _clear(self, step: Step) -> None:
        for table in (self._kv, self._pos, self._written, self._hidden):
            table[step.clear_pages] = 0
        for embeds in (self._emb, self._emb_pos, self._emb_ended):
            embeds[step.clear_embeds] = 0
        self._slot[step.clear_slots] = 0
        self._slot_ended[step.clear_slots] = False
        self._poisoned.difference_update(step.reset_lanes.tolist())

    def _run(self, batch: Batch) -> BatchResult:
        out = _Answers(len(batch.lane))
        match batch:
            case EmbedTxt():
                self._embed_txt(batch, out)
            case Forward():
                self._forward(batch, out)
            case CopyKvPage():
                self._copy(batch, out)
            case MaskKvPage():
                self._mask(batch, out)
            case GetNextDist():
                self._get_next_dist(batch, out)
            case Sample():
                self._sample(batch, out)
        return out.finish()

    def _admit(self, lane: npt.NDArray[np.uint32], b: int, out: _Answers) -> bool:
        """Whether command `b` may run; one of a poisoned lane is refused."""
        if int(lane[b]) in self._poisoned:
            out.status[b] = Status.REFUSED
            return False
        return True

    def _fail(self, lane: npt.NDArray[np.uint32], b: int, error: TartletError, out: _Answers) -> None:
        self._poisoned.add(int(lane[b]))
        out.fail(b, error)

    # ---- handlers -----------------------------------------------------------------------------------------------

    def _embed_txt(self, x: EmbedTxt, out: _Answers) -> None:
        from_slot = x.slot >= 0
        tokens = np.where(from_slot, self._slot[x.slot], x.token)
        ended = from_slot & self._slot_ended[x.slot]
        for b in range(len(x.lane)):
            if not self._admit(x.lane, b, out):
                continue
            span = slice(int(x.indptr[b]), int(x.indptr[b + 1]))
            error = self._embed_fault(tokens[span], x.position[span])
            if error is not None:
                self._fail(x.lane, b, error, out)
            elif ended[span].any():
                out.status[b] = Status.SKIPPED
                self._emb_ended[x.embed[span]] = True
            else:
                self._emb[x.embed[span]] = model.token_value(tokens[span], self._options.seed)
                self._emb_pos[x.embed[span]] = x.position[span]
                self._emb_ended[x.embed[span]] = False

    def _embed_fault(self, tokens: npt.NDArray[np.int32], positions: npt.NDArray[np.int32]) -> TartletError | None:
        o = self._options
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

    def _forward(self, x: Forward, out: _Answers) -> None:
        emb, emb_pos, emb_ended = self._emb.copy(), self._emb_pos.copy(), self._emb_ended.copy()
        for b in range(len(x.lane)):
            if not self._admit(x.lane, b, out):
                continue
            iemb = x.iemb[x.iemb_indptr[b] : x.iemb_indptr[b + 1]]
            oemb = x.oemb[x.oemb_indptr[b] : x.oemb_indptr[b + 1]]
            okv = x.okv[x.okv_indptr[b] : x.okv_indptr[b + 1]]
            offset = int(x.okv_offset[b])
            if emb_ended[iemb].any():
                out.status[b] = Status.SKIPPED
                self._emb_ended[oemb] = True
                continue
            error = self._forward_fault(len(iemb), len(okv), len(oemb), offset)
            if error is not None:
                self._fail(x.lane, b, error, out)
                continue
            new, positions = model.column(emb[iemb], emb_pos[iemb]), emb_pos[iemb]
            pages, slots = self._targets(okv, offset, len(iemb))
            ikv = x.ikv[x.ikv_indptr[b] : x.ikv_indptr[b + 1]]
            mask = _mask(x, b, len(iemb), len(ikv) * self._options.page_size + len(iemb))
            sums = self._attend(ikv, pages * self._options.page_size + slots, new, positions, mask)
            self._kv[pages, slots] = new[: len(pages)]
            self._pos[pages, slots] = positions[: len(pages)]
            self._written[pages, slots] = True
            last = len(iemb) - len(oemb)
            self._emb[oemb] = model.mix(sums + emb[iemb])[last:]
            self._emb_pos[oemb] = positions[last:]
            self._emb_ended[oemb] = False
            self._tokens += len(iemb)

    def _forward_fault(self, n: int, pages: int, n_out: int, offset: int) -> TartletError | None:
        if n == 0 or n_out > n:
            return InvalidArgument(argument="oemb", detail=f"{n_out} outputs of {n} input embeds")
        if pages and offset + n > pages * self._options.page_size:
            return InvalidArgument(
                argument="okv",
                detail=f"{n} tokens at offset {offset} don't fit {pages} pages of {self._options.page_size}",
            )
        return None

    def _targets(
        self, okv: npt.NDArray[np.int32], offset: int, n: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Page and slot of each of `n` tokens; empty if the command writes no pages."""
        if not len(okv):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        at = offset + np.arange(n)
        return okv[at // self._options.page_size].astype(np.int64), at % self._options.page_size

    def _attend(
        self,
        ikv: npt.NDArray[np.int32],
        writes: npt.NDArray[np.int64],  # [n] flat slots that this call writes: ignored as context
        new: model.U64,  # [n]
        positions: npt.NDArray[np.int32],  # [n]
        mask: Bools | None,  # [n, C]
    ) -> model.U64:
        """[n]: the sum of the visible columns of each query."""
        size = self._options.page_size
        flat = (ikv.astype(np.int64)[:, None] * size + np.arange(size)).ravel()
        valid = self._written.ravel()[flat] & ~self._hidden.ravel()[flat]
        if len(writes):
            valid &= ~np.isin(flat, writes)
        columns = np.concatenate([self._kv.ravel()[flat], new])  # [C]
        column_pos = np.concatenate([self._pos.ravel()[flat], positions])  # [C]
        seen = column_pos[None, :] <= positions[:, None] if mask is None else mask
        seen = seen & np.concatenate([valid, np.ones(len(new), np.bool_)])[None, :]
        return np.asarray(np.where(seen, columns[None, :], np.uint64(0)).sum(axis=1, dtype=np.uint64))

    def _copy(self, x: CopyKvPage, out: _Answers) -> None:
        for b in range(len(x.lane)):
            if not self._admit(x.lane, b, out):
                continue
            size, src, dst = int(x.size[b]), int(x.src_offset[b]), int(x.dst_offset[b])
            if max(src, dst) + size > self._options.page_size:
                limit = self._options.page_size
                error = InvalidArgument(argument="size", detail=f"{size} tokens pass the page's end of {limit}")
                self._fail(x.lane, b, error, out)
                continue
            for table in (self._kv, self._pos, self._written, self._hidden):
                table[x.dst[b], dst : dst + size] = table[x.src[b], src : src + size].copy()

    def _mask(self, x: MaskKvPage, out: _Answers) -> None:
        shifts = np.arange(self._options.page_size, dtype=np.uint32)
        for b in range(len(x.lane)):
            if self._admit(x.lane, b, out):
                self._hidden[x.page[b]] = (x.bits[b] >> shifts) & np.uint32(1)

    def _get_next_dist(self, x: GetNextDist, out: _Answers) -> None:
        logp = model.log_softmax(model.logits(self._emb[x.embed])) if len(x.embed) else np.zeros((0, 1))
        counts = np.zeros(len(x.embed), np.int32)
        tokens: list[npt.NDArray[np.int64]] = []
        for b in range(len(x.lane)):
            if not self._admit(x.lane, b, out):
                continue
            span = range(int(x.indptr[b]), int(x.indptr[b + 1]))
            if self._emb_ended[x.embed[span.start : span.stop]].any():
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

    def _sample(self, x: Sample, out: _Answers) -> None:
        logp = model.log_softmax(model.logits(self._emb[x.embed]))
        u = uniform(x.seed, self._emb_pos[x.embed], x.draw)
        out.sampled = True
        for b in range(len(x.lane)):
            if not self._admit(x.lane, b, out):
                continue
            slot = int(x.slot[b])
            if self._emb_ended[x.embed[b]]:
                out.status[b] = Status.SKIPPED
                self._slot_ended[slot] = True
                continue
            how = model.Sampler(float(x.temperature[b]), int(x.top_k[b]), float(x.top_p[b]), float(x.min_p[b]))
            token = model.draw(logp[b], how, float(u[b]))
            ended = token in x.stop[x.stop_indptr[b] : x.stop_indptr[b + 1]]
            self._slot[slot], self._slot_ended[slot] = token, ended
            out.token[b], out.ended[b], out.logprob[b] = token, ended, logp[b, token]


class _Answers:
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


def _mask(x: Forward, b: int, rows: int, columns: int) -> Bools | None:
    """[rows, columns] of command `b`, None if it brought no mask."""
    start, end = int(x.mask_indptr[b]), int(x.mask_indptr[b + 1])
    if start == end:
        return None
    bits = np.unpackbits(x.mask_bits[start:end], bitorder="little", count=rows * columns)
    return bits.astype(np.bool_).reshape(rows, columns)


def _spec(o: FakeOptions) -> EngineSpec:
    tokenizer = model.tokenizer_json()
    return EngineSpec(
        model=o.model,
        model_digest=hashlib.sha256(f"fake {o.seed}".encode()).hexdigest(),
        family="fake",
        dtype="float32",
        device="cpu",
        page_size=o.page_size,
        num_pages=o.num_pages,
        num_embeds=o.num_embeds,
        num_slots=o.num_slots,
        vocab_size=model.VOCAB_SIZE,
        max_position=o.max_position,
        max_batch_tokens=o.max_batch_tokens,
        max_batch_commands=o.max_batch_commands,
        top_k_limit=model.VOCAB_SIZE,
        kv_bytes_per_token=14,
        tokenizer_digest=hashlib.sha256(tokenizer).hexdigest(),
        stop_tokens=(model.EOS,),
        bos_token=None,
        chat_template=model.CHAT_TEMPLATE,
        batch_invariant=True,
    )
