"""`embed_txt`: token ids, or tokens that were sampled into slots, become embeds at positions."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from tartlet_common.errors import ContextTooLong, InvalidArgument, TartletError
from tartlet_common.step import BatchResult, EmbedTxt
from tartlet_worker.csr import any_by, take
from tartlet_worker.handlers.outcome import Outcome
from tartlet_worker.pools import Pools


def embed_txt(batch: EmbedTxt, pools: Pools, poisoned: set[int], embedding: Tensor, max_position: int) -> BatchResult:
    """Run one EmbedTxt batch; embedding is [vocab, dim]."""
    outcome = Outcome(batch.lane, poisoned)
    indptr, vocab = batch.indptr, embedding.shape[0]
    token, from_slot = batch.token, batch.slot >= 0
    outcome.check_ids("embed", batch.embed, indptr, pools.sizes.num_embeds)
    if from_slot.any():
        known = outcome.check_ids("slot", np.where(from_slot, batch.slot, 0), indptr, pools.sizes.num_slots)
        source = np.where(from_slot, batch.slot, 0) if known else np.where(from_slot, batch.slot, 0) % len(pools.slot_token)
        outcome.skip(any_by(from_slot & pools.slot_ended[source], indptr))
        token = np.where(from_slot, pools.slot_token[source], token)
        unwritten = from_slot & (token < 0)
        if unwritten.any():
            outcome.fail(
                any_by(unwritten, indptr), lambda b: InvalidArgument(argument="slot", detail="read before written")
            )
    _check_range(outcome, batch, token, vocab, max_position)
    runs = outcome.settle()
    _mark_skipped(outcome, batch, pools)
    if len(runs) == len(batch.lane):
        embed, position = batch.embed, batch.position
    else:
        chosen, _ = take(indptr, runs)
        token, embed, position = token[chosen], batch.embed[chosen], batch.position[chosen]
    if len(embed):
        pools.embeds.index_copy_(0, pools.index(embed), embedding.index_select(0, pools.index(token)))
        pools.embed_position[embed] = position
        pools.embed_ended[embed] = False
    return outcome.result()


def _check_range(outcome: Outcome, batch: EmbedTxt, token: np.ndarray, vocab: int, max_position: int) -> None:
    """Fail commands whose token or position the model doesn't have."""
    position = batch.position
    if not len(token) or (token.min() >= 0 and token.max() < vocab and position.min() >= 0 and position.max() < max_position):
        return
    bad_token, bad_position = (token < 0) | (token >= vocab), (position < 0) | (position >= max_position)

    def token_error(b: int) -> TartletError:
        mine = slice(int(batch.indptr[b]), int(batch.indptr[b + 1]))
        bad = int(token[mine][bad_token[mine]][0])
        return InvalidArgument(argument="tokens", detail=f"{bad} is not in the vocabulary of {vocab}")

    def position_error(b: int) -> TartletError:
        mine = slice(int(batch.indptr[b]), int(batch.indptr[b + 1]))
        return ContextTooLong(position=int(position[mine][bad_position[mine]][0]), limit=max_position)

    outcome.fail(any_by(bad_token, batch.indptr), token_error)
    outcome.fail(any_by(bad_position, batch.indptr), position_error)


def _mark_skipped(outcome: Outcome, batch: EmbedTxt, pools: Pools) -> None:
    skipped = outcome.skipped
    if skipped.any():
        chosen, _ = take(batch.indptr, np.flatnonzero(skipped))
        pools.embed_ended[batch.embed[chosen]] = True
