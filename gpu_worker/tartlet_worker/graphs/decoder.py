"""A decoder that replays captured graphs where a pass is plain decode, and leaves everything else to the one in torch.

Embedding and passing through the layers are put off until the step's tokens are sampled. Then the step is one copy up,
two replays (the layers, and the output matrix with the choice of tokens) and one copy down. What is put off is computed
before anything else uses the pools (`finish`).

While the device computes a step, the next one may be launched (`ahead`, `GraphDecoder.launch`). Its rows take the
tokens of the step before it on the device. The handlers run that next step's batches later, once the host knows those
tokens, and then the decoder launches nothing again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tartlet_worker.attention.base import GraphAttention, PlanChanged, StaticDecode
from tartlet_worker.csr import I64, Ints
from tartlet_worker.graphs.ahead import Ahead
from tartlet_worker.graphs.buckets import bucket_of, sampled_rows, table_width
from tartlet_worker.graphs.buffers import (
    AFTER,
    MIN_P,
    MOST_STOPS,
    OUT,
    SAMPLED,
    STOPS,
    TEMPERATURE,
    TOKEN,
    Buffers,
)
from tartlet_worker.graphs.capture import Capture
from tartlet_worker.graphs.rows import I32, DecodeRows, decode_rows
from tartlet_worker.models.base import Decoder, ForwardPlan
from tartlet_worker.models.torch_decoder import TorchDecoder
from tartlet_worker.pools import Pools
from tartlet_worker.sampling.base import F32, LogSums, SampleParams, Sampler, Targets, needs_sorting
from tartlet_worker.sampling.torch_sampler import draw_whole, log_sums
from tartlet_worker.transfers import Download

log = logging.getLogger("tartlet.worker")

_NO_TOKENS: Final = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class Layers:
    """A captured pass through the layers."""

    reach: int  # columns of the longest context
    attention: StaticDecode
    replay: Callable[[], None]


@dataclass(frozen=True, slots=True)
class PutOff:
    """A pass that waits for its step's sample."""

    rows: DecodeRows
    token: I32  # [N], -1: the embed holds it already
    bucket: int
    layers: Layers
    source: I32 | None = None  # [N] token slots whose tokens the rows take


@dataclass(frozen=True, slots=True)
class Sampling:
    """A choice of tokens that the device makes."""

    bucket: int
    answers: Download
    ends_known: bool  # on the device: which slots end with these tokens


@dataclass(frozen=True, slots=True)
class Launched:
    """A step that the device computes, and whose sample the handlers haven't run yet."""

    ahead: Ahead
    sampling: Sampling


class GraphDecoder(Decoder):
    """`Decoder` over the pools of one engine."""

    def __init__(
        self,
        decoder: TorchDecoder,
        attention: GraphAttention,
        pools: Pools,
        capture: Capture,
        buckets: tuple[int, ...],
        log_sums: LogSums = log_sums,
    ) -> None:
        """Allocate the buffers; `capture` captures the graphs.

        Args:
            decoder: the model; it also runs what no graph serves.
            attention: the decoder's, as it is captured.
            pools: of the engine.
            capture: how a graph is captured.
            buckets: numbers of rows, ascending.
            log_sums: sums the exponentials of which log-probabilities are made.
        """
        self.eager, self.config = decoder, decoder.config
        self.attention, self.pools = attention, pools
        self._capture, self._buckets, self._log_sums = capture, buckets, log_sums
        most = sampled_rows(self.config.vocab, buckets[-1])
        self._sampled_buckets = tuple(rows for rows in buckets if rows <= most)
        width = table_width(self.config.max_position, pools.page_size, buckets[-1])
        self.buffers = Buffers(pools, buckets[-1], width)
        self._most = min(self.config.max_position, width * pools.page_size)
        decoder.rope.reserve(self.config.max_position)  # the tables may not move
        self.layers: dict[int, list[Layers]] = {}  # by rows, then in the order of their reach
        self._samplers: dict[tuple[int, bool], Callable[[], None]] = {}  # by rows, and whether noise is drawn
        self._embeds: tuple[Ints, Ints] | None = None  # ids and tokens that are put off
        self._put_off: PutOff | None = None
        self._token_of = np.full(pools.sizes.num_embeds, -1, np.int32)  # scratch memory, -1 between uses
        self._launched: Launched | None = None  # ahead of its handlers
        self.waiting: Callable[[Ints, Callable[[], bool]], None] | None = None
        """Called while the device samples, with the slots [N] that take tokens and whether the tokens can be read."""
        self.passes = self.replays = 0

    @property
    def computing(self) -> Callable[[], None]:
        """See `Decoder.computing`."""
        return self.eager.computing

    @computing.setter
    def computing(self, call: Callable[[], None]) -> None:
        self.eager.computing = call

    @torch.inference_mode()
    def capture(self, progress: Callable[[str], None] = lambda _: None) -> int:
        """Capture all graphs, the largest first; return how many."""
        progress(f"capturing graphs of up to {self._buckets[-1]} rows")
        for rows in reversed(self._buckets):
            num_pages, position = self.buffers.set_rows(None, _NO_TOKENS, rows)
            self.buffers.send(None, rows)
            made = []
            for reach in reversed(self.attention.reaches(rows, self._most)):
                static = self.attention.static(self.buffers.static_rows(rows), reach)
                static.fill(num_pages, position)
                made.append(Layers(reach, static, self._capture.graph(partial(self._pass, rows, static))))
            self.layers[rows] = made[::-1]
        for rows in reversed(self._sampled_buckets):
            self.buffers.set_samples(_NO_TOKENS, None, rows, None)
            self.buffers.send(None, 0)
            for drawn in (True, False):
                self._samplers[rows, drawn] = self._capture.graph(partial(self._choose, rows, drawn=drawn))
        return sum(map(len, self.layers.values())) + len(self._samplers)

    def _pass(self, rows: int, attention: StaticDecode) -> None:
        """Embed, pass through the layers and store hidden states: what a graph of layers holds."""
        eager, embeds = self.eager, self.pools.embeds
        buffers, spare = self.buffers, self.pools.spare_embed
        token, source, embed, position, page, slot, out = buffers.ints(TOKEN, OUT + 1, rows).unbind(0)
        token = torch.where(source == buffers.spare_slot, token, buffers.slot_token.index_select(0, source))
        ended = buffers.slot_ended.index_select(0, source)  # such a row may leave no trace
        x = torch.where((token >= 0)[:, None], eager.embedded(token.clamp(min=0)), embeds.index_select(0, embed))
        embeds.index_copy_(0, embed.masked_fill(ended, spare), x)
        attention.start()
        places = eager.places(position, page.masked_fill(ended, self.pools.scratch_page), slot)
        x = eager.layers(x, places, attention.run, self.pools)
        embeds.index_copy_(0, out.masked_fill(ended, spare), eager.normed(x))

    def _choose(self, rows: int, *, drawn: bool) -> None:
        """Multiply with the output matrix and choose tokens: what a graph that samples holds."""
        buffers = self.buffers
        embed, into, after = buffers.ints(SAMPLED, AFTER + 1, rows).unbind(0)
        logits = self.eager.head(self.pools.embeds.index_select(0, embed))
        if drawn:
            temperature, min_p = buffers.floats(TEMPERATURE, rows), buffers.floats(MIN_P, rows)
            token = draw_whole(logits, temperature, min_p, buffers.noise(rows))
        else:
            token = logits.argmax(-1)
        to_token, to_logprob = buffers.answers(rows)
        to_token.copy_(token)
        to_logprob.copy_(logits.gather(1, token[:, None])[:, 0] - self._log_sums(logits))
        skipped = buffers.slot_ended.index_select(0, after)
        stopped = (buffers.ints(STOPS, STOPS + MOST_STOPS, rows) == token).any(0)
        buffers.slot_token.index_copy_(0, into, to_token)  # nobody reads the token of an ended slot
        buffers.slot_ended.index_copy_(0, into, skipped | stopped)

    def embed(self, pools: Pools, embed: Ints, token: Ints) -> None:
        """See `Decoder.embed`; a batch that a graph may take is put off."""
        if self._launched is not None:
            later = ~np.isin(embed, self._launched.ahead.rows.embed)
            if later.any():
                self.eager.embed(pools, embed[later], token[later])
            return
        self.finish(pools)
        if bucket_of(len(embed), self._buckets) is None:
            self.eager.embed(pools, embed, token)
        else:
            self._embeds = embed, token

    @torch.inference_mode()
    def run(self, plan: ForwardPlan, pools: Pools) -> None:
        """See `Decoder.run`; a pass that a graph serves is put off."""
        if self._put_off is not None:
            self.finish(pools)
        rows = decode_rows(plan, pools)
        if self._launched is not None:
            self._launched.ahead.check_rows(rows)
            return
        bucket = None if rows is None else bucket_of(len(rows.embed), self._buckets)
        if rows is None or bucket is None or (layers := self._reaching(rows, bucket)) is None:
            self._run_eagerly(plan, pools)
        else:
            self._put_off = PutOff(rows, self._tokens(rows, pools), bucket, layers)

    def _reaching(self, rows: DecodeRows, bucket: int) -> Layers | None:
        longest = int(rows.position.max()) + 1
        return next((made for made in self.layers[bucket] if longest <= made.reach), None)

    def _run_eagerly(self, plan: ForwardPlan, pools: Pools) -> None:
        self.finish(pools)
        self.passes += 1
        self.eager.run(plan, pools)

    def _tokens(self, rows: DecodeRows, pools: Pools) -> I32:
        """Take the tokens [N] of the rows from what is put off; -1 where the embed was written before."""
        token = np.full(len(rows.embed), -1, np.int32)
        if self._embeds is None:
            return token
        if not np.isin(self._embeds[0], rows.embed).all():  # an embed that another command will read
            self._finish_embeds(pools)
            return token
        embed, given = self._embeds
        self._embeds = None
        self._token_of[embed] = given
        token = self._token_of[rows.embed]
        self._token_of[embed] = -1
        return token

    def logits(self, pools: Pools, embed: Ints) -> Tensor:
        """See `Decoder.logits`."""
        self.finish(pools)
        return self.eager.logits(pools, embed)

    @torch.inference_mode()
    def sample(
        self, pools: Pools, embed: Ints, params: SampleParams, sampler: Sampler, into: Targets
    ) -> tuple[I64, F32]:
        """See `Decoder.sample`; a graph serves batches without top_k and top_p."""
        launched, self._launched = self._launched, None
        if launched is not None:
            sampling, at = launched.sampling, launched.ahead.check_samples(embed, into)
        else:
            bucket = bucket_of(len(embed), self._buckets)
            if bucket is None or needs_sorting(params, self.config.vocab).any():
                return sampler.sample(self.logits(pools, embed), params)
            if self._embeds is not None:
                self._finish_embeds(pools)
            sampling, at = self._launch_sample(embed, params, bucket, into), np.arange(len(embed))
        self.computing()
        if self.waiting is not None and sampling.ends_known:
            self.waiting(into.slot, sampling.answers.done)
        found = sampling.answers.wait()
        return found[at].astype(np.int64), found[sampling.bucket + at].view(np.float32)

    @torch.inference_mode()
    def launch(self, ahead: Ahead) -> Launched | None:
        """Launch a step whose batches the handlers will run next; None if no graph serves the step.

        Call this from `waiting` only: everything before the step has been launched then.
        """
        assert self._put_off is None
        assert self._launched is None
        assert self._embeds is None
        rows, bucket = ahead.rows, bucket_of(len(ahead.rows.embed), self._buckets)
        sampled = bucket_of(len(ahead.embed), self._buckets)
        if bucket is None or sampled is None or (layers := self._reaching(rows, bucket)) is None:
            return None
        self._put_off = PutOff(rows, ahead.token, bucket, layers, ahead.source)
        sampling = self._launch_sample(ahead.embed, ahead.params, sampled, ahead.into, ahead.after)
        self._launched = Launched(ahead, sampling)
        return self._launched

    def landed(self, launched: Launched) -> None:
        """Forget a step that was launched ahead: the handlers have run its sample, which may have had nothing to do."""
        if self._launched is launched:
            self._launched = None

    def _launch_sample(
        self, embed: Ints, params: SampleParams, bucket: int, into: Targets, after: I32 | None = None
    ) -> Sampling:
        """Launch the pass that was put off, if one was, and the choice of tokens, and begin to read them."""
        drawn = bool((params.temperature > 0).any())
        known = self.buffers.set_samples(embed, params if drawn else None, bucket, into, after)
        self._launch()
        choose = self._samplers.get((bucket, drawn))
        if choose is None:  # no graph holds so many logits for good
            self._choose(bucket, drawn=drawn)
        else:
            choose()
        return Sampling(bucket, self.buffers.read(bucket), known)

    @torch.inference_mode()
    def finish(self, pools: Pools) -> None:
        """See `Decoder.finish`."""
        if self._embeds is not None:
            self._finish_embeds(pools)
        if self._put_off is not None:
            self._launch()
            self.computing()

    def _finish_embeds(self, pools: Pools) -> None:
        assert self._embeds is not None
        embeds, self._embeds = self._embeds, None
        self.eager.embed(pools, *embeds)

    def _launch(self) -> None:
        """Send the columns, and replay the layers if a pass was put off."""
        put_off, self._put_off = self._put_off, None
        if put_off is None:
            self.buffers.send(None, 0)
            return
        num_pages, position = self.buffers.set_rows(put_off.rows, put_off.token, put_off.bucket, put_off.source)
        self.buffers.send(put_off.rows, put_off.bucket)
        self.passes += 1
        try:
            put_off.layers.attention.fill(num_pages, position)
        except PlanChanged as changed:
            self._drop(put_off, changed)
            self._pass(put_off.bucket, put_off.layers.attention)
        else:
            put_off.layers.replay()
            self.replays += 1

    def _drop(self, put_off: PutOff, why: PlanChanged) -> None:
        """Use a graph no more; later passes of its rows run eagerly."""
        log.warning(
            "the graph of %d rows is dropped, such batches run without one from now on: attention asks for other "
            "launches than were captured: %s",
            put_off.bucket,
            why,
        )
        self.layers[put_off.bucket].remove(put_off.layers)
