"""`forward`: embeds go through the model's layers over KV pages (contract 2)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tartlet_common.errors import InvalidArgument, TartletError
from tartlet_common.step import BatchResult, Forward
from tartlet_worker.csr import any_by, take
from tartlet_worker.handlers.forward_plan import ForwardPlan, columns, mask_bytes, plan_forward
from tartlet_worker.handlers.outcome import Outcome
from tartlet_worker.handlers.waves import cut
from tartlet_worker.pools import Pools

RunModel = Callable[[ForwardPlan], None]
"""Runs the layers and stores keys, values and output embeds."""


def forward(batch: Forward, pools: Pools, poisoned: set[int], run: RunModel) -> tuple[BatchResult, int]:
    """Run one Forward batch; returns its answer and how many tokens went through the layers.

    Commands behave as if run one after the other (`waves`). Those of one lane may stand in one batch, also where a
    later one reads pages that an earlier one writes.
    """
    ranges = cut(batch, pools)
    if len(ranges) == 1:
        return _run_range(batch, pools, poisoned, run)
    answers = []
    for first, last in ranges:
        answers.append(_run_range(_slice(batch, first, last), pools, poisoned, run))
    results = [result for result, _ in answers]
    whole = Outcome(batch.lane, set()).result()
    return (
        BatchResult(
            status=np.concatenate([r.status for r in results]),
            error=np.concatenate([r.error for r in results]),
            token=whole.token,
            ended=whole.ended,
            logprob=whole.logprob,
            dist_indptr=whole.dist_indptr,
            dist_token=whole.dist_token,
            dist_prob=whole.dist_prob,
            detail=tuple(text for r in results for text in r.detail),
        ),
        sum(tokens for _, tokens in answers),
    )


def _run_range(batch: Forward, pools: Pools, poisoned: set[int], run: RunModel) -> tuple[BatchResult, int]:
    outcome = Outcome(batch.lane, poisoned)
    if _check_ids(outcome, batch, pools):
        outcome.skip(any_by(pools.embed_ended[batch.iemb], batch.iemb_indptr))
        unwritten = any_by(pools.embed_position[batch.iemb] < 0, batch.iemb_indptr)
        if unwritten.any():
            # An ended embed that was never written is skipped above, not failed.
            outcome.fail(unwritten, lambda b: InvalidArgument(argument="iemb", detail="read before written"))
    _check_shapes(outcome, batch, pools)
    runs = outcome.settle()
    skipped = outcome.skipped
    if skipped.any():
        chosen, _ = take(batch.oemb_indptr, np.flatnonzero(skipped))
        pools.embed_ended[batch.oemb[chosen]] = True
    tokens = 0
    if len(runs):
        cut_columns = columns(batch, runs)
        tokens = len(cut_columns.iemb)
        if tokens:
            plan = plan_forward(cut_columns, pools)
            run(plan)
            pools.embed_position[plan.out_embed] = plan.position[plan.out_token]
            pools.embed_ended[plan.out_embed] = False
    return outcome.result(), tokens


def _check_ids(outcome: Outcome, batch: Forward, pools: Pools) -> bool:
    sizes = pools.sizes
    good = outcome.check_ids("embed", batch.iemb, batch.iemb_indptr, sizes.num_embeds)
    good &= outcome.check_ids("embed", batch.oemb, batch.oemb_indptr, sizes.num_embeds)
    good &= outcome.check_ids("page", batch.ikv, batch.ikv_indptr, sizes.num_pages)
    good &= outcome.check_ids("page", batch.okv, batch.okv_indptr, sizes.num_pages)
    if good:
        return True
    # Someone named an id that doesn't exist: check the embeds of the others one by one.
    inside = np.clip(batch.iemb, 0, sizes.num_embeds - 1)
    outcome.skip(any_by(pools.embed_ended[inside], batch.iemb_indptr))
    outcome.fail(
        any_by(pools.embed_position[inside] < 0, batch.iemb_indptr),
        lambda b: InvalidArgument(argument="iemb", detail="read before written"),
    )
    return False


def _check_shapes(outcome: Outcome, batch: Forward, pools: Pools) -> None:
    """Lengths that must fit each other."""
    size = pools.page_size
    tokens, pages = np.diff(batch.iemb_indptr).astype(np.int64), np.diff(batch.ikv_indptr).astype(np.int64)
    outs, room = np.diff(batch.oemb_indptr), np.diff(batch.okv_indptr).astype(np.int64) * size
    outcome.fail(
        (outs > tokens) | (tokens == 0),
        lambda b: InvalidArgument(argument="oemb", detail=f"{outs[b]} output embeds for {tokens[b]} input embeds"),
    )
    past = (room > 0) & ((batch.okv_offset + tokens > room) | (batch.okv_offset < 0))

    def past_error(b: int) -> TartletError:
        detail = f"{tokens[b]} tokens from offset {batch.okv_offset[b]} don't fit {room[b]} slots"
        return InvalidArgument(argument="okv", detail=detail)

    outcome.fail(past, past_error)
    loose = (room == 0) & (tokens > 0)
    if loose.any():
        needed = np.where(loose, -(-tokens // size), 0)
        over = loose & (np.cumsum(needed) > pools.num_scratch_pages)
        limit = pools.sizes.scratch_tokens
        outcome.fail(
            over, lambda b: InvalidArgument(argument="okv", detail=f"more than {limit} tokens need okv pages")
        )
    given = np.diff(batch.mask_indptr)
    if len(batch.mask_bits):
        wrong = (given > 0) & (given != mask_bytes(tokens, pages, size))
        outcome.fail(
            wrong,
            lambda b: InvalidArgument(
                argument="mask", detail=f"it must be [{tokens[b]}, {pages[b] * size + tokens[b]}]"
            ),
        )


def _slice(batch: Forward, first: int, last: int) -> Forward:
    """Commands first .. last - 1 as a batch of their own."""

    def part(values: np.ndarray, indptr: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        cut_indptr = indptr[first : last + 1]
        return values[cut_indptr[0] : cut_indptr[-1]], cut_indptr - cut_indptr[0]

    ikv, ikv_indptr = part(batch.ikv, batch.ikv_indptr)
    iemb, iemb_indptr = part(batch.iemb, batch.iemb_indptr)
    okv, okv_indptr = part(batch.okv, batch.okv_indptr)
    oemb, oemb_indptr = part(batch.oemb, batch.oemb_indptr)
    mask_bits, mask_indptr = part(batch.mask_bits, batch.mask_indptr)
    return Forward(
        lane=batch.lane[first:last],
        ikv=ikv,
        ikv_indptr=ikv_indptr,
        iemb=iemb,
        iemb_indptr=iemb_indptr,
        okv=okv,
        okv_indptr=okv_indptr,
        okv_offset=batch.okv_offset[first:last],
        oemb=oemb,
        oemb_indptr=oemb_indptr,
        mask_bits=mask_bits,
        mask_indptr=mask_indptr,
    )
