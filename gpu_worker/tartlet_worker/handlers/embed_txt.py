"""Runs `embed_txt` batches: token ids, or tokens that were sampled into slots, become embeds at positions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tartlet_common.engine.step import BatchResult, EmbedTxt, Kind
from tartlet_common.errors.registry import ContextTooLong, InvalidArgument, TartletError
from tartlet_worker.csr import Bools, take
from tartlet_worker.handlers.registration import Resources, handles
from tartlet_worker.handlers.statuses import BatchStatuses
from tartlet_worker.pools import Pools


@handles(Kind.EMBED_TXT)
def embed_txt(batch: EmbedTxt, on: Resources) -> tuple[BatchResult, int]:
    """Run one EmbedTxt batch."""
    pools = on.pools
    statuses = BatchStatuses(batch.lane, on.poisoned)
    indptr = batch.indptr
    statuses.check_ids("embed", batch.embed, indptr, pools.sizes.num_embeds)
    token = _resolve(statuses, batch, pools)
    _check_range(statuses, batch, token, on.spec.vocab_size, on.spec.max_position)
    runs = statuses.settle()
    if statuses.all_run:
        embed, position = batch.embed, batch.position
    else:
        ended, _ = take(indptr, statuses.skipped)
        pools.embed_ended[batch.embed[ended]] = True
        chosen, _ = take(indptr, runs)
        token, embed, position = token[chosen], batch.embed[chosen], batch.position[chosen]
    if len(embed):
        last = _last_of_each(embed, pools)
        if not last.all():  # the last command counts, but a device writes equal places in any order
            embed, token, position = embed[last], token[last], position[last]
        on.decoder.embed(pools, embed, token)
        pools.embed_position[embed] = position
        pools.embed_ended[embed] = False
    return statuses.result(), 0


def _last_of_each(embed: npt.NDArray[np.int32], pools: Pools) -> Bools:
    """Return [N]: whether an embed does not come again among those behind it."""
    mark, number = pools.embed_mark, np.arange(1, len(embed) + 1)
    mark[embed] = number
    last: Bools = mark[embed] == number
    mark[embed] = 0
    return last


def _resolve(statuses: BatchStatuses, batch: EmbedTxt, pools: Pools) -> npt.NDArray[np.int32]:
    """Return token ids [T]: those of the batch, or those that its slots hold."""
    slot = batch.slot
    if not len(slot) or slot.max() < 0:
        return batch.token
    from_slot = slot >= 0
    source = np.where(from_slot, slot, 0)
    if not statuses.check_ids("slot", source, batch.indptr, pools.sizes.num_slots):
        source %= pools.sizes.num_slots
    statuses.skip(from_slot & pools.slot_ended[source], batch.indptr)
    token = np.where(from_slot, pools.slot_token[source], batch.token)
    statuses.fail(
        from_slot & (token < 0),
        lambda b: InvalidArgument(argument="slot", detail="no sample has written it: give it to one first"),
        batch.indptr,
    )
    return token


def _check_range(
    statuses: BatchStatuses, batch: EmbedTxt, token: npt.NDArray[np.int32], vocab: int, max_position: int
) -> None:
    """Fail commands whose token or position the model doesn't have."""
    position = batch.position
    if not len(token) or (token.view(np.uint32).max() < vocab and position.view(np.uint32).max() < max_position):
        return
    bad_token, bad_position = (token < 0) | (token >= vocab), (position < 0) | (position >= max_position)

    def token_error(b: int) -> TartletError:
        mine = slice(int(batch.indptr[b]), int(batch.indptr[b + 1]))
        bad = int(token[mine][bad_token[mine]][0])
        return InvalidArgument(argument="tokens", detail=f"{bad} is not in the vocabulary of {vocab}")

    def position_error(b: int) -> TartletError:
        mine = slice(int(batch.indptr[b]), int(batch.indptr[b + 1]))
        return ContextTooLong(position=int(position[mine][bad_position[mine]][0]), limit=max_position)

    statuses.fail(bad_token, token_error, batch.indptr)
    statuses.fail(bad_position, position_error, batch.indptr)
