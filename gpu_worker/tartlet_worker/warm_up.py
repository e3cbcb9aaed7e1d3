"""Runs a few steps before the first program's, so that a backend has chosen its kernels and filled its caches."""

from __future__ import annotations

import numpy as np

from tartlet_common.engine.step import EmbedTxt, Forward, Sample, Step
from tartlet_worker.engine import Engine

_DECODES = 2


def warm_up(engine: Engine) -> None:
    """Prefill a page, decode and sample, then reset the engine. An engine too small for that is left alone."""
    tokens = min(engine.spec.page_size, engine.spec.max_position - _DECODES)
    if tokens < 1 or engine.spec.num_pages < 2:
        return
    engine.step(_step(1, 0, tokens))
    for i in range(_DECODES):
        engine.step(_step(2 + i, tokens + i, 1))
    engine.reset()


def _step(number: int, position: int, count: int) -> Step:
    """Make a step with token 0 at `count` positions from `position` on, in pages 0 and 1, and a greedy sample."""
    lane, one = np.zeros(1, np.uint32), np.array([0, 1], np.int32)
    embeds, none = np.arange(count, dtype=np.int32), np.zeros(0, np.int32)
    ends, pages = np.array([0, count], np.int32), np.array([0, 1], np.int32)
    zero = np.zeros(1, np.int32)
    embed = EmbedTxt(lane, ends, embeds, np.zeros(count, np.int32), np.full(count, -1, np.int32), position + embeds)
    forward = Forward(
        lane=lane,
        ikv=pages,
        ikv_indptr=2 * one,
        iemb=embeds,
        iemb_indptr=ends,
        okv=pages,
        okv_indptr=2 * one,
        okv_offset=np.array([position], np.int32),
        oemb=zero,
        oemb_indptr=one,
        mask_bits=np.zeros(0, np.uint8),
        mask_indptr=np.zeros(2, np.int32),
    )
    sample = Sample(
        lane=lane,
        embed=zero,
        slot=zero,
        temperature=np.zeros(1, np.float32),
        top_k=zero,
        top_p=np.ones(1, np.float32),
        min_p=np.zeros(1, np.float32),
        seed=np.zeros(1, np.uint64),
        draw=np.zeros(1, np.uint32),
        stop=none,
        stop_indptr=np.zeros(2, np.int32),
    )
    return Step(number, (embed, forward, sample))
