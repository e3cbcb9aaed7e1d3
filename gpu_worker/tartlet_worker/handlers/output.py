"""Runs `get_next_dist` and `sample` batches: from output embeds to distributions and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tartlet_common.engine.sample_options import SampleOptions
from tartlet_common.engine.step import BatchResult, GetNextDist, Kind, Sample
from tartlet_common.errors.registry import InvalidArgument, TartletError
from tartlet_worker.csr import Bools, Ints, any_by, counts, indptr_of, take, within
from tartlet_worker.handlers.registration import Resources, handles
from tartlet_worker.handlers.statuses import BatchStatuses, one_each
from tartlet_worker.history import Told, asked_columns, histories_full, options_of, with_forced
from tartlet_worker.pools import Pools
from tartlet_worker.sampling.base import SampleParams, Sampler, Targets
from tartlet_worker.sampling.with_options import sample_with

CHUNK_BYTES = 256 << 20
"""Memory for logits at one time. A whole batch could take gigabytes, and sorting it four times as much."""


@handles(Kind.GET_NEXT_DIST)
def get_next_dist(batch: GetNextDist, on: Resources) -> tuple[BatchResult, int]:
    """Top-K of the full softmax for each embed; skipped and failed commands get empty distributions."""
    pools, limit, vocab = on.pools, on.spec.top_k_limit, on.spec.vocab_size
    statuses = BatchStatuses(batch.lane, on.poisoned)
    _check_source(statuses, batch.embed, batch.indptr, pools)
    statuses.fail(
        np.asarray((batch.top_k < 1) | (batch.top_k > limit)),
        lambda b: InvalidArgument(argument="top_k", detail=f"{batch.top_k[b]} is not within 1 to {limit}"),
    )
    runs = statuses.settle()
    lengths = np.zeros(len(batch.embed), np.int64)  # [E]
    chosen, cut = take(batch.indptr, runs)
    if not len(chosen):
        none = np.zeros(len(lengths) + 1, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32)
        return statuses.result(dist=none), 0
    widths = np.minimum(batch.top_k[runs].repeat(counts(cut)), vocab).astype(np.int64)  # [embeds that run]
    parts = [
        _top(on.decoder.logits(pools, batch.embed[chosen[first:last]]), on.sampler, widths[first:last])
        for first, last in _chunks(len(chosen), vocab)
    ]
    lengths[chosen] = widths
    indptr = indptr_of(lengths).astype(np.int32)
    tokens, values = (np.concatenate(column) for column in zip(*parts, strict=True))
    return statuses.result(dist=(indptr, tokens, values)), 0


def rows_at_once(vocab: int) -> int:
    """Return how many rows of logits take at most `CHUNK_BYTES`."""
    return max(1, CHUNK_BYTES // (4 * vocab))


def _chunks(count: int, vocab: int) -> list[tuple[int, int]]:
    """Return ranges [first, last) of rows whose logits are computed together."""
    step = rows_at_once(vocab)
    return [(first, min(first + step, count)) for first in range(0, count, step)]


def _top(
    rows: Tensor, sampler: Sampler, widths: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Return the best tokens of each row and their probabilities, as many as its width, one row after the other."""
    ids, probs = sampler.top(rows, int(widths.max()))
    tokens = ids.astype(np.int32)
    if (widths == tokens.shape[1]).all():
        return tokens.reshape(-1), probs.reshape(-1)
    row, column = np.repeat(np.arange(len(widths)), widths), within(indptr_of(widths))
    return tokens[row, column], probs[row, column]


@handles(Kind.SAMPLE)
def sample_tokens(batch: Sample, on: Resources) -> tuple[BatchResult, int]:
    """Sample one token an embed into its slot; a stop token marks the slot ended."""
    pools, vocab = on.pools, on.spec.vocab_size
    count = len(batch.lane)
    one = one_each(count)
    statuses = BatchStatuses(batch.lane, on.poisoned)
    _check_source(statuses, batch.embed, one, pools)
    statuses.check_ids("slot", batch.slot, one, pools.sizes.num_slots)
    _check_params(statuses, batch)
    asking = options_of(batch) if len(batch.with_options) else {}
    for b, asked in asking.items():
        if not pools.histories.room_for(asked):
            statuses.fail(np.arange(count) == b, histories_full)
    runs = statuses.settle()
    masks = _masks(batch, asking, runs, on)
    if masks.errors:
        statuses.fail(np.isin(np.arange(count), list(masks.errors)), masks.errors.__getitem__)
        runs = statuses.settle()
    if not statuses.all_run:
        pools.slot_ended[batch.slot[statuses.skipped]] = True
    token = np.full(count, -1, np.int32)
    logprob = np.zeros(count, np.float32)
    ended = np.zeros(count, np.uint8)
    answers: dict[int, Told] = {}
    for first, last in _chunks(len(runs), vocab):
        part = runs[first:last]
        embed = batch.embed[part]
        params = params_of(batch, part, pools.embed_position[embed])
        if not asking:
            token[part], logprob[part] = on.decoder.sample(pools, embed, params, on.sampler, Targets(batch, part))
            continue
        logits = on.decoder.logits(pools, embed)
        options = {row: asking[b] for row, b in enumerate(part.tolist()) if b in asking}
        allowed = {row: masks.words[b] for row, b in enumerate(part.tolist()) if b in masks.words}
        token[part], logprob[part], told_of = sample_with(
            on.sampler, logits, params, batch.slot[part], options, pools.histories, allowed
        )
        answers |= {int(part[row]): told for row, told in told_of.items()}
    if len(runs):
        ended[runs] = _stops(batch, token)[runs]
        following = [b for b in runs.tolist() if b in masks.words]
        for b, forced in _advance(batch, following, asking, token, ended, pools).items():
            answers[b] = with_forced(answers[b], forced)
        pools.slot_token[batch.slot[runs]] = token[runs]
        pools.slot_ended[batch.slot[runs]] = ended[runs]
    if not asking:
        return statuses.result(token=token, ended=ended, logprob=logprob), 0
    return statuses.result(token=token, ended=ended, logprob=logprob, dist=asked_columns(asking, answers)), 0


def params_of(batch: Sample, rows: npt.NDArray[np.int64], position: npt.NDArray[np.int32]) -> SampleParams:
    """Return the parameters of some commands [N], whose embeds are at these positions [N]."""
    return SampleParams(
        temperature=batch.temperature[rows],
        top_k=batch.top_k[rows],
        top_p=batch.top_p[rows],
        min_p=batch.min_p[rows],
        seed=batch.seed[rows],
        draw=batch.draw[rows],
        position=position,
    )


class _Masks(NamedTuple):
    """The tokens that grammars allow: words [W] by command, and why commands can't have any."""

    words: dict[int, npt.NDArray[np.int32]]
    errors: dict[int, TartletError]


def _masks(batch: Sample, asking: dict[int, SampleOptions], runs: npt.NDArray[np.int64], on: Resources) -> _Masks:
    """Return the masks of the commands that run and follow grammars."""
    following = {b for b, asked in asking.items() if asked.grammar is not None}
    if not following:
        return _Masks({}, {})
    wanted = {b: (int(batch.slot[b]), asking[b]) for b in runs.tolist() if b in following}
    if on.pools.matchers is None:
        none = InvalidArgument(argument="grammar", detail="this engine has no grammars")
        return _Masks({}, dict.fromkeys(wanted, none))
    return _Masks(*on.pools.matchers.prepare(wanted))


def _advance(
    batch: Sample,
    following: list[int],
    asking: dict[int, SampleOptions],
    token: npt.NDArray[np.int32],
    ended: npt.NDArray[np.uint8],
    pools: Pools,
) -> dict[int, Sequence[int]]:
    """Move matchers on; a text that can't go on ends its slot.

    Returns:
        The tokens that grammars force, by the commands that ask for them.
    """
    if not following or pools.matchers is None:
        return {}
    at = batch.slot[following].tolist()
    telling = {slot for b, slot in zip(following, at, strict=True) if asking[b].forced}
    told = pools.matchers.advance(list(zip(at, token[following].tolist(), strict=True)), telling)
    ended[following] |= np.array([one.stopped for one in told], np.uint8)
    return {b: one.forced for b, one in zip(following, told, strict=True) if len(one.forced)}


def _check_source(statuses: BatchStatuses, embed: npt.NDArray[np.int32], indptr: Ints, pools: Pools) -> None:
    known = statuses.check_ids("embed", embed, indptr, pools.sizes.num_embeds)
    source = embed if known else np.clip(embed, 0, pools.sizes.num_embeds - 1)
    statuses.skip(pools.embed_ended[source], indptr)
    statuses.fail(
        pools.embed_position[source] < 0,
        lambda b: InvalidArgument(argument="embed", detail="no forward has written it: give it to one as oemb"),
        indptr,
    )


def _check_params(statuses: BatchStatuses, batch: Sample) -> None:
    """Fail commands with parameters out of range."""
    statuses.fail(
        ~params_in_range(batch),
        lambda b: InvalidArgument(
            argument="sampler",
            detail=f"temperature {batch.temperature[b]}, top_k {batch.top_k[b]}, top_p {batch.top_p[b]}, "
            f"min_p {batch.min_p[b]}: one is out of range",
        ),
    )


def params_in_range(batch: Sample) -> Bools:
    """Return [B]: whether the parameters of a command are in range. NaN isn't."""
    return np.asarray(
        (batch.temperature >= 0)
        & np.isfinite(batch.temperature)
        & (batch.top_p >= 0)
        & (batch.top_p <= 1)
        & (batch.min_p >= 0)
        & (batch.min_p <= 1)
        & (batch.top_k >= 0)
    )


def _stops(batch: Sample, token: npt.NDArray[np.int32]) -> Bools:
    """Return [B]: whether the token is one of its command's stop tokens."""
    if not len(batch.stop):
        return np.zeros(len(token), np.bool_)
    return any_by(batch.stop == np.repeat(token, counts(batch.stop_indptr)), batch.stop_indptr)
