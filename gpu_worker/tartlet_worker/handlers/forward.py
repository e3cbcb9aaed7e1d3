"""Runs `forward` batches: embeds go through the model's layers, over KV pages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tartlet_common.engine.step import BatchResult, Forward, Kind
from tartlet_common.errors.registry import InvalidArgument, TartletError, UnknownAdapter
from tartlet_worker.csr import I64, Bools, counts, take
from tartlet_worker.handlers.conflicts import cut_at_conflicts
from tartlet_worker.handlers.forward_plan import columns, mask_bytes, plan_forward
from tartlet_worker.handlers.long_commands import most_of_one_position, split_long_command
from tartlet_worker.handlers.registration import Resources, handles
from tartlet_worker.handlers.statuses import BatchStatuses
from tartlet_worker.handlers.table_plan import join, plan_tables
from tartlet_worker.models.base import ForwardPlan
from tartlet_worker.pools import Pools


@handles(Kind.FORWARD)
def forward(batch: Forward, on: Resources) -> tuple[BatchResult, int]:
    """Run one Forward batch; returns its answer and how many tokens went through the layers.

    Commands behave as if run one after the other (`conflicts`). Those of one lane may stand in one batch, also where a
    later one reads pages that an earlier one writes.
    """
    ranges = cut_at_conflicts(batch, on.pools)
    if len(ranges) == 1:
        return _run_range(batch, on)
    answers = []
    for first, last in ranges:
        answers.append(_run_range(_slice(batch, first, last), on))
    results = [result for result, _ in answers]
    whole = BatchStatuses(batch.lane, set()).result()
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


def _run_range(batch: Forward, on: Resources) -> tuple[BatchResult, int]:
    pools = on.pools
    statuses = BatchStatuses(batch.lane, on.poisoned)
    iemb = batch.iemb
    if not _check_ids(statuses, batch, pools):
        iemb = np.clip(iemb, 0, pools.sizes.num_embeds - 1)  # the others of the batch are checked all the same
    statuses.skip(pools.embed_ended[iemb], batch.iemb_indptr)
    # An ended embed that was never written is skipped above, not failed.
    statuses.fail(
        pools.embed_position[iemb] < 0,
        lambda b: InvalidArgument(argument="iemb", detail="nothing has written it: embed_txt does, or another forward"),
        batch.iemb_indptr,
    )
    _check_shapes(statuses, batch, pools)
    if len(batch.adapter):
        _check_adapters(statuses, batch, on)
    _check_parts(statuses, batch, pools.embed_position[iemb], pools.sizes.scratch_tokens)
    runs = statuses.settle()
    if not statuses.all_run:
        ended, _ = take(batch.oemb_indptr, statuses.skipped)
        pools.embed_ended[batch.oemb[ended]] = True
    if not len(runs):
        return statuses.result(), 0
    plan = _plan(batch, runs, pools)
    for part in split_long_command(plan, pools, pools.sizes.scratch_tokens, on.decoder):
        on.decoder.run(part, pools)
    pools.embed_position[plan.out_embed] = plan.position[plan.out_token]
    pools.embed_ended[plan.out_embed] = False
    return statuses.result(), len(plan.embed)


def _plan(batch: Forward, runs: I64, pools: Pools) -> ForwardPlan:
    """Plan the commands that run: those over page lists, those over tables, or both in one pass."""
    over_table = _over_table(batch)[runs]
    lists, tables = runs[~over_table], runs[over_table]
    if not len(tables):
        plan = plan_forward(columns(batch, lists), pools)
    elif not len(lists):
        plan = plan_tables(columns(batch, tables), pools)
    else:
        plan = join(plan_forward(columns(batch, lists), pools), plan_tables(columns(batch, tables), pools))
    if len(batch.adapter):
        order = np.concatenate([lists, tables])
        plan = replace(plan, adapter=batch.adapter[order].repeat(counts(batch.iemb_indptr)[order]))
    return plan


def _over_table(batch: Forward) -> Bools:
    """Return [B]: whether a command uses a page table."""
    return batch.table >= 0 if len(batch.table) else np.zeros(len(batch.lane), np.bool_)


def _check_ids(statuses: BatchStatuses, batch: Forward, pools: Pools) -> bool:
    sizes = pools.sizes
    good = statuses.check_ids("embed", batch.iemb, batch.iemb_indptr, sizes.num_embeds)
    good &= statuses.check_ids("embed", batch.oemb, batch.oemb_indptr, sizes.num_embeds)
    good &= statuses.check_ids("page", batch.ikv, batch.ikv_indptr, sizes.num_pages)
    return good & statuses.check_ids("page", batch.okv, batch.okv_indptr, sizes.num_pages)


def _check_shapes(statuses: BatchStatuses, batch: Forward, pools: Pools) -> None:
    """Fail commands whose lists have lengths that don't fit each other."""
    size, over_table = pools.page_size, _over_table(batch)
    tokens, pages = counts(batch.iemb_indptr), counts(batch.ikv_indptr)
    outs, room = counts(batch.oemb_indptr), counts(batch.okv_indptr) * size
    statuses.fail(
        (outs > tokens) | (tokens == 0),
        lambda b: InvalidArgument(argument="oemb", detail=f"{outs[b]} output embeds for {tokens[b]} input embeds"),
    )
    past = (room > 0) & ((batch.okv_offset + tokens > room) | (batch.okv_offset < 0))

    def past_error(b: int) -> TartletError:
        detail = f"{tokens[b]} tokens from offset {batch.okv_offset[b]} don't fit {room[b]} slots"
        return InvalidArgument(argument="okv", detail=detail)

    statuses.fail(past, past_error)
    if len(batch.table):
        _check_tables(statuses, batch, over_table, pools)
    loose = (room == 0) & (tokens > 0) & ~over_table
    if loose.any():
        needed = np.where(loose, -(-tokens // size), 0)
        over = loose & (np.cumsum(needed) > pools.num_scratch_pages)
        limit = pools.sizes.scratch_tokens
        statuses.fail(
            over, lambda b: InvalidArgument(argument="okv", detail=f"more than {limit} tokens need okv pages")
        )
    if len(batch.mask_bits):
        given = counts(batch.mask_indptr)
        before = np.where(over_table, batch.okv_offset, pages * size)
        wrong = (given > 0) & (given != mask_bytes(tokens, before))
        statuses.fail(
            wrong,
            lambda b: InvalidArgument(argument="mask", detail=f"it must be [{tokens[b]}, {before[b] + tokens[b]}]"),
        )


def _check_adapters(statuses: BatchStatuses, batch: Forward, on: Resources) -> None:
    """Fail commands under an adapter that the engine doesn't have."""
    known = np.array([0, *on.adapters], np.uint32)

    def error(b: int) -> TartletError:
        available = [adapter.name for adapter in on.adapters.values()]
        return UnknownAdapter(model=on.spec.model, adapter=int(batch.adapter[b]), available=available)

    statuses.fail(~np.isin(batch.adapter, known), error)


def _check_tables(statuses: BatchStatuses, batch: Forward, over_table: Bools, pools: Pools) -> None:
    """Fail commands over a table that doesn't have the slots that they write."""
    tables = pools.tables
    known = over_table & (batch.table < len(tables.count))
    room = np.where(known, tables.count[np.where(known, batch.table, 0)], 0).astype(np.int64) * pools.page_size
    end = batch.okv_offset + counts(batch.iemb_indptr)

    def error(b: int) -> TartletError:
        detail = f"slots {batch.okv_offset[b]} to {end[b] - 1} of a table with {room[b]}"
        return InvalidArgument(argument="table", detail=detail)

    statuses.fail(over_table & ((batch.okv_offset < 0) | (end > room)), error)


def _check_parts(statuses: BatchStatuses, batch: Forward, position: npt.NDArray[np.int32], limit: int) -> None:
    """Fail commands that are too long for one pass and can't be split, because too many tokens share a position."""
    long = counts(batch.iemb_indptr) > limit
    if not long.any():
        return
    whole = (counts(batch.mask_indptr) > 0) | ((counts(batch.okv_indptr) == 0) & ~_over_table(batch))
    inseparable = np.zeros(len(long), np.bool_)
    for b in np.flatnonzero(long & ~whole):
        mine = position[batch.iemb_indptr[b] : batch.iemb_indptr[b + 1]]
        inseparable[b] = most_of_one_position(mine) > limit
    statuses.fail(
        inseparable,
        lambda _: InvalidArgument(argument="iemb", detail=f"more than {limit} tokens of one position"),
    )


def _slice(batch: Forward, first: int, last: int) -> Forward:
    """Return commands first .. last - 1 as a batch."""

    def part(values: npt.NDArray[Any], indptr: npt.NDArray[np.int32]) -> tuple[Any, npt.NDArray[np.int32]]:
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
        table=batch.table[first:last],
        adapter=batch.adapter[first:last],
    )
