"""Calls that read output embeds: `get_next_dist` and `sample`."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, repeat
from operator import attrgetter
from typing import Final

import numpy as np

from tartlet_common.abi import DEFAULT_TOP_K, SAMPLE_PARAMS, Op, Record
from tartlet_common.engine import sample_options
from tartlet_common.engine.step import EMPTY_I32, TABLES_SINCE, BatchResult, Kind
from tartlet_common.engine.step import GetNextDist as GetNextDistBatch
from tartlet_common.engine.step import Sample as SampleBatch
from tartlet_common.engine.token_bytes import MAX_TOKEN_BYTES
from tartlet_common.errors.registry import EngineFailure, InvalidArgument, MalformedSubmission, UnsupportedTrait
from tartlet_control.calls.base import MAX_ANSWER_BYTES, EngineCall, ReadsOnly, Value, i32, u32, words
from tartlet_control.tables.grammars import Grammar
from tartlet_control.tables.ledger import EMBEDS, SLOTS
from tartlet_control.tables.programs import Command, CommandQueue, Held, ProgramState

# ---- get_next_dist --------------------------------------------------------------------------------------------------

_DIST_HEAD: Final = struct.Struct("<II")


class GetNextDist(Command):
    """Asks for the `top_k` most probable tokens after each of `embeds`."""

    __slots__ = ("embeds", "top_k")
    kind = int(Kind.GET_NEXT_DIST)
    answer_sized = True

    def __init__(self, queue: CommandQueue, record: Record, arrived: float, embeds: list[int], top_k: int) -> None:
        super().__init__(queue, record, arrived)
        self.embeds = embeds
        self.top_k = top_k
        self.tokens = len(embeds)  # each takes a row of logits on the engine
        self.size = 32 + 8 * top_k * len(embeds)


def parse_get_next_dist(queue: CommandQueue, record: Record, payload: memoryview, arrived: float) -> Command:
    """Parse `get_next_dist`: the answer fits a message."""
    embeds = words(payload)
    spec = queue.spec
    top_k = record.a or min(DEFAULT_TOP_K, spec.top_k_limit)
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
    return GetNextDist(queue, record, arrived, embeds, top_k)


class PackGetNextDist:
    """Columns of a `get_next_dist` batch."""

    def __init__(self) -> None:
        self.lanes: list[int] = []
        self._indptr = [0]
        self._embed: list[int] = []
        self._top_k: list[int] = []

    def add(self, c: GetNextDist, held: Held) -> None:
        """Add a command."""
        self._embed += [*map(held[EMBEDS].__getitem__, c.embeds)]
        self._indptr.append(len(self._embed))
        self._top_k.append(c.top_k)

    def finish(self) -> GetNextDistBatch:
        """Return the batch."""
        return GetNextDistBatch(u32(self.lanes), i32(self._indptr), i32(self._embed), i32(self._top_k))


def settle_get_next_dist(commands: Sequence[GetNextDist], answers: BatchResult) -> list[Value]:
    """Return each command's payload: u32 n, k, ids[n, k], f32 probs[n, k]. Commands that didn't run have k = 0."""
    column = answers.dist_indptr
    if len(column) != sum(len(c.embeds) for c in commands) + 1 or column[0] != 0 or (np.diff(column) < 0).any():
        raise EngineFailure(detail="the columns of a get_next_dist answer don't fit its embeds")
    indptr = column.tolist()
    if not indptr[-1] == len(answers.dist_token) == len(answers.dist_prob):
        raise EngineFailure(detail="the columns of a get_next_dist answer are of different lengths")
    ids, probs = answers.dist_token.tobytes(), answers.dist_prob.tobytes()
    values, at = [], 0
    for command in commands:
        n = len(command.embeds)
        start, end = indptr[at], indptr[at + n]
        at += n
        head = _DIST_HEAD.pack(n, (end - start) // n)
        values.append((0, 0, 0, head + ids[4 * start : 4 * end] + probs[4 * start : 4 * end]))
    return values


def _embeds_of_dist(c: GetNextDist) -> Iterable[tuple[int, Iterable[int]]]:
    return ((EMBEDS, c.embeds),)


GET_NEXT_DIST: Final = EngineCall(
    Op.GET_NEXT_DIST,
    Kind.GET_NEXT_DIST,
    parse_get_next_dist,
    ReadsOnly,
    PackGetNextDist,
    names=_embeds_of_dist,
    reads=attrgetter("embeds"),
    settle=settle_get_next_dist,
)


# ---- sample ---------------------------------------------------------------------------------------------------------

_PARAMS: Final = struct.Struct("<fIffQII")
_I32_MAX: Final = 0x7FFF_FFFF
_MAX_TEMPERATURE: Final = 1_000_000
_NO_LOGPROBS: Final = bytes(4)

assert _PARAMS.size == SAMPLE_PARAMS.itemsize


class Sample(Command):
    """Samples a token from `embed` into `slot`.

    Attributes:
        params: abi.SAMPLE_PARAMS.
        stop: u32 stop tokens.
        options: abi.SAMPLE_OPTIONS with its lists, usually empty.
        with_bytes: whether the answer tells the token's bytes.
        grammar: the id of the grammar that the options name and where it stands in their bytes, or None.
        named: the grammar that had this id when the command came.
        sent: whether an engine has had the command; it counts that the grammar was there then.
    """

    __slots__ = ("embed", "grammar", "named", "options", "params", "sent", "slot", "stop", "with_bytes")
    kind = int(Kind.SAMPLE)

    def __init__(
        self, queue: CommandQueue, record: Record, arrived: float, params: bytes, stop: bytes, options: bytes = b""
    ) -> None:
        super().__init__(queue, record, arrived)
        self.size = 64 + len(stop) + len(options)
        self.options = options
        self.grammar: tuple[int, int] | None = None
        self.named: Grammar | None = None
        self.sent = False
        self.embed = record.a
        self.slot = record.b
        self.with_bytes = record.c == 1
        if self.with_bytes:
            self.size += MAX_TOKEN_BYTES
        self.params = params
        self.stop = stop


def parse_sample(queue: CommandQueue, record: Record, payload: memoryview, arrived: float) -> Command:
    """Parse `sample`: each filter is defined for its parameter, and the options leave a token to sample."""
    size = len(payload)
    if size < _PARAMS.size:
        raise MalformedSubmission(detail=f"sample needs {_PARAMS.size} payload bytes or more, not {size}")
    temperature, top_k, top_p, min_p, _, _, n_stop = _PARAMS.unpack_from(payload)
    end = 32 + 4 * n_stop
    if size < end:
        raise MalformedSubmission(detail=f"sample with {n_stop} stop tokens needs {end} bytes or more, not {size}")
    if not 0.0 <= temperature <= _MAX_TEMPERATURE:
        detail = f"{temperature} is not within 0 to {_MAX_TEMPERATURE}"
        raise InvalidArgument(argument="temperature", detail=detail)
    if not (0.0 < top_p <= 1.0 and 0.0 <= min_p <= 1.0):
        raise InvalidArgument(argument="top_p, min_p", detail=f"{top_p}, {min_p} are not probabilities")
    if top_k > _I32_MAX:
        raise InvalidArgument(argument="top_k", detail=f"{top_k} is too large")
    if n_stop:
        worst = max(payload[32:end].cast("I").tolist())
        if worst > _I32_MAX:
            raise InvalidArgument(argument="stop", detail=f"{worst} is no token")
    if record.c > 1:
        raise InvalidArgument(argument="with_bytes", detail=f"{record.c} is neither 0 nor 1")
    raw = bytes(payload)
    options = raw[end:]
    command = Sample(queue, record, arrived, raw[:32], raw[32:end], options)
    if options:
        spec = queue.spec
        command.grammar = _checked(options, spec.vocab_size, spec.logprobs_limit)
        if command.grammar is not None:
            command.named = queue.place.grammars.get(command.grammar[0])
    return command


def _checked(options: bytes, vocab: int, top_limit: int) -> tuple[int, int] | None:
    """Check options, and return the grammar that they name and its place."""
    return (_check_short if len(options) <= _SHORT_BYTES else _check)(options, vocab, top_limit)


def _check(options: bytes, vocab: int, top_limit: int) -> tuple[int, int] | None:
    read = sample_options.read(options)
    sample_options.check(read, vocab, top_limit)
    return sample_options.named_grammar(read, options)


_SHORT_BYTES: Final = 256
_check_short: Final = lru_cache(maxsize=1024)(_check)
"""A generation repeats its options at every token. Errors are not kept."""


class SampleConflicts:
    """Token slots that the batch writes for one queue."""

    __slots__ = ("_slots",)

    def __init__(self) -> None:
        self._slots: set[int] = set()

    def add(self, command: Sample) -> None:
        """Record the slot that a command writes."""
        self._slots.add(command.slot)

    def conflicts(self, candidate: Sample) -> bool:
        """Return whether a slot would be written twice."""
        return candidate.slot in self._slots


class PackSample:
    """Columns of a `sample` batch."""

    def __init__(self) -> None:
        self.lanes: list[int] = []
        self._embed: list[int] = []
        self._slot: list[int] = []
        self._params: list[bytes] = []
        self._stops: list[bytes] = []
        self._with_options: list[int] = []
        self._with_bytes: list[int] = []
        self._options: list[bytes] = []

    def add(self, c: Sample, held: Held) -> None:
        """Add a command."""
        embed, slot = held[EMBEDS][c.embed], held[SLOTS][c.slot]
        if c.options:
            engine = c.queue.place.engine
            if engine is None or engine.protocol < TABLES_SINCE:
                raise UnsupportedTrait(model=c.queue.spec.model, trait="options of sample")
            options = c.options if c.grammar is None else _on_engine(c, c.grammar)
            self._with_options.append(len(self._embed))
            self._options.append(options)
        if c.with_bytes and (engine := c.queue.place.engine) is not None and engine.protocol >= TABLES_SINCE:
            self._with_bytes.append(len(self._embed))
        self._embed.append(embed)
        self._slot.append(slot)
        self._params.append(c.params)
        self._stops.append(c.stop)

    def finish(self) -> SampleBatch:
        """Return the batch."""
        params = np.frombuffer(b"".join(self._params), SAMPLE_PARAMS)
        indptr = np.zeros(len(params) + 1, np.int32)
        np.cumsum(params["n_stop"], out=indptr[1:])
        return SampleBatch(
            lane=u32(self.lanes),
            embed=i32(self._embed),
            slot=i32(self._slot),
            temperature=np.ascontiguousarray(params["temperature"]),
            top_k=params["top_k"].astype(np.int32),
            top_p=np.ascontiguousarray(params["top_p"]),
            min_p=np.ascontiguousarray(params["min_p"]),
            seed=np.ascontiguousarray(params["seed"]),
            draw=np.ascontiguousarray(params["draw"]),
            stop=np.frombuffer(b"".join(self._stops), np.int32),
            stop_indptr=indptr,
            with_options=i32(self._with_options),
            options=np.frombuffer(b"".join(self._options), np.uint8),
            options_indptr=i32([0, *accumulate(map(len, self._options))] if self._options else []),
            with_bytes=i32(self._with_bytes) if self._with_bytes else EMPTY_I32,
        )


def _on_engine(c: Sample, named: tuple[int, int]) -> bytes:
    """Return the options of a sample with the number that its grammar has on the engine."""
    grammar_id, at = named
    held = c.queue.place.grammars.get(grammar_id)
    grammar = c.named = c.named or held
    if grammar is None or not (c.sent or grammar is held):
        raise InvalidArgument(argument="grammar", detail=f"the program has no grammar {grammar_id}")
    if not grammar.ready:
        raise InvalidArgument(argument="grammar", detail="await the grammar first")
    c.sent = True
    return c.options[:at] + grammar.number.to_bytes(4, "little") + c.options[at + 4 :]


def settle_sample(commands: Sequence[Sample], answers: BatchResult) -> Iterable[Value]:
    """Return each command's token, whether it ended the text, and the bits of its log-probability.

    A command that asked for log-probabilities or the token's bytes gets a payload: u32 n, ids[n], f32 logprobs[n], and
    the bytes, which a worker of an earlier release, or without a tokenizer, doesn't tell.
    """
    if not len(answers.token) == len(answers.ended) == len(answers.logprob) == len(commands):
        raise EngineFailure(detail=f"the columns of a sample answer don't fit {len(commands)} commands")
    tokens = answers.token.view(np.uint32).tolist()
    logprobs = answers.logprob.view(np.uint32).tolist()
    payloads: Iterable[bytes] = repeat(b"")
    asking = [at for at, c in enumerate(commands) if c.options]
    if asking:
        payloads = _asked_logprobs(len(commands), asking, answers)
    if len(answers.text_indptr):
        payloads = _asked_bytes(commands, payloads, answers)
    return zip(tokens, answers.ended.tolist(), logprobs, payloads, strict=False)


def _asked_logprobs(count: int, asking: list[int], answers: BatchResult) -> list[bytes]:
    """Return the payload of each of `count` answers; the commands at `asking` brought options."""
    indptr = answers.dist_indptr.tolist()
    fits = len(indptr) == len(asking) + 1 and indptr[0] == 0 and sorted(indptr) == indptr
    if not fits or not indptr[-1] == len(answers.dist_token) == len(answers.dist_prob):
        raise EngineFailure(detail=f"the log-probabilities of a sample answer don't fit {len(asking)} commands")
    ids, values = answers.dist_token.tobytes(), answers.dist_prob.tobytes()
    payloads = [b""] * count
    for at, start, end in zip(asking, indptr, indptr[1:], strict=False):
        if end > start:
            head = (end - start).to_bytes(4, "little")
            payloads[at] = head + ids[4 * start : 4 * end] + values[4 * start : 4 * end]
    return payloads


def _asked_bytes(commands: Sequence[Sample], payloads: Iterable[bytes], answers: BatchResult) -> list[bytes]:
    """Return the payloads of answers with the bytes of tokens behind them."""
    indptr = answers.text_indptr.tolist()
    asking = [at for at, c in enumerate(commands) if c.with_bytes]
    lengths = np.diff(answers.text_indptr)
    fits = len(indptr) == len(asking) + 1 and not indptr[0]
    if not fits or (lengths < 0).any() or (lengths > MAX_TOKEN_BYTES).any():
        raise EngineFailure(detail=f"the bytes of a sample answer don't fit {len(asking)} commands")
    if indptr[-1] != len(answers.text):
        raise EngineFailure(detail=f"a sample answer has {len(answers.text)} bytes of tokens, not {indptr[-1]}")
    text = answers.text.tobytes()
    told = [payload for payload, _ in zip(payloads, commands, strict=False)]
    for at, start, end in zip(asking, indptr, indptr[1:], strict=False):
        if end > start:
            told[at] = (told[at] or _NO_LOGPROBS) + text[start:end]
    return told


def _names_of_sample(c: Sample) -> Iterable[tuple[int, Iterable[int]]]:
    return ((EMBEDS, (c.embed,)), (SLOTS, (c.slot,)))


def _count_sample(program: ProgramState, c: Sample) -> None:
    program.sampled_tokens += 1


SAMPLE: Final = EngineCall(
    Op.SAMPLE,
    Kind.SAMPLE,
    parse_sample,
    SampleConflicts,
    PackSample,
    names=_names_of_sample,
    reads=lambda c: (c.embed,),
    settle=settle_sample,
    count=_count_sample,
    always_answered=True,
)

ENGINE_CALLS: Final = (SAMPLE, GET_NEXT_DIST)
