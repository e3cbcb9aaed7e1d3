"""Sampling by torch's own operations, on any device; `base` has the rule, whose steps are numbered there."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tartlet_worker.csr import I64
from tartlet_worker.sampling.base import F32, LogSums, SampleParams
from tartlet_worker.sampling.philox import uniform
from tartlet_worker.sampling.portions import portions

_NUCLEUS_FIRST = 1024
"""How many candidates are sorted first; if top_p needs more, the whole vocabulary is sorted."""


def log_sums(logits: Tensor) -> Tensor:
    """See `LogSums`. A row's bits may depend on how many rows there are."""
    return logits.logsumexp(-1)


def log_sums_one_by_one(logits: Tensor) -> Tensor:
    """See `LogSums`. A row's bits depend on nothing else, because each row is a tensor of its own."""
    sums = logits.new_empty(len(logits))
    for i, row in enumerate(logits):
        sums[i] = row.clone().logsumexp(-1)  # at an address that is as round as that of any other
    return sums


class TorchSampler:
    """`Sampler` on any device. It draws from rows in portions (`portions`), so that memory for them can be kept."""

    def __init__(self, log_sums: LogSums = log_sums) -> None:
        """`log_sums` sums the exponentials of which log-probabilities are made."""
        self._log_sums = log_sums

    def sample(self, logits: Tensor, params: SampleParams) -> tuple[I64, F32]:
        """See `Sampler`, which documents the method."""
        token = logits.argmax(-1)
        rows = np.flatnonzero(params.temperature > 0)
        if len(rows):
            noise = uniform(params.seed[rows], params.position[rows], params.draw[rows])
            parts = portions(len(rows), logits.shape[1])
            chosen = torch.cat([_draw(logits, params, rows[part], noise[part]) for part in parts])
            if len(rows) == len(token):
                token = chosen
            else:
                token[torch.from_numpy(rows).to(logits.device)] = chosen
        logprob = logits.gather(1, token[:, None])[:, 0] - self._log_sums(logits)
        return token.cpu().numpy(), logprob.cpu().numpy()

    def logprobs(self, logits: Tensor, ids: I64) -> F32:
        """See `Sampler`, which documents the method."""
        at = torch.from_numpy(ids).to(logits.device)
        return np.asarray((logits.gather(1, at) - self._log_sums(logits)[:, None]).cpu().numpy())

    def top(self, logits: Tensor, top_k: int) -> tuple[I64, F32]:
        """See `Sampler`, which documents the method."""
        parts = [largest(logits[part], top_k) for part in portions(*logits.shape)]
        best, ids = (torch.cat(part) for part in zip(*parts, strict=True))
        return ids.cpu().numpy(), torch.exp(best - self._log_sums(logits)[:, None]).cpu().numpy()


def _draw(logits: Tensor, params: SampleParams, rows: npt.NDArray[np.int64], noise: npt.NDArray[np.float64]) -> Tensor:
    """Run steps 2 to 6 for some rows."""
    device, vocab = logits.device, logits.shape[1]
    together = rows[-1] - rows[0] + 1 == len(rows)
    mine = logits[rows[0] : rows[-1] + 1] if together else logits[torch.from_numpy(rows).to(device)]
    temperature = torch.from_numpy(params.temperature[rows]).to(device)[:, None]
    weights = torch.exp((mine - mine.amax(-1, keepdim=True)) / temperature)  # [R, V]
    top_k = np.where((params.top_k[rows] <= 0) | (params.top_k[rows] > vocab), vocab, params.top_k[rows])
    sorting = (top_k < vocab) | (params.top_p[rows] < 1)
    min_p = torch.from_numpy(params.min_p[rows]).to(device)[:, None]
    # The largest weight is 1.
    kept = torch.where(weights >= min_p, weights, 0.0) if (params.min_p[rows] > 0).any() else weights
    u = torch.from_numpy(noise).to(device)[:, None]
    if not sorting.any():
        return _pick(kept, u)
    if sorting.all():
        return _draw_sorted(weights, kept, top_k, params.top_p[rows], u)
    token = torch.empty(len(rows), dtype=torch.int64, device=device)
    some = torch.from_numpy(np.flatnonzero(sorting)).to(device)
    rest = torch.from_numpy(np.flatnonzero(~sorting)).to(device)
    token[rest] = _pick(kept[rest], u[rest])
    token[some] = _draw_sorted(weights[some], kept[some], top_k[sorting], params.top_p[rows][sorting], u[some])
    return token


def draw_whole(logits: Tensor, temperature: Tensor, min_p: Tensor, u: Tensor) -> Tensor:
    """Sample rows [N, V] without top_k and top_p, as `TorchSampler` does, by operations that a graph can hold.

    Args:
        logits: [N, V] float32.
        temperature: [N] float32; 0: the largest logit's token.
        min_p: [N] float32.
        u: [N] float64, uniform.

    Returns:
        [N] int64 tokens.
    """
    hot = temperature > 0
    weights = torch.exp((logits - logits.amax(-1, keepdim=True)) / torch.where(hot, temperature, 1.0)[:, None])
    kept = torch.where(weights >= min_p[:, None], weights, 0.0)
    return torch.where(hot, _pick(kept, u[:, None]), logits.argmax(-1))


def _pick(weights: Tensor, u: Tensor) -> Tensor:
    """Run step 6: weights [R, C] of candidates in ascending order of ids (0: dropped), u [R, 1] float64."""
    running = weights.double().cumsum(-1)
    total = running[:, -1:].contiguous()
    at = torch.searchsorted(running, u * total, right=True)[:, 0]
    # Rounding may put u * total at the total itself: then the last candidate that has any weight is meant.
    last = torch.searchsorted(running, total)[:, 0]
    # Weights that are not numbers find no place at all.
    return torch.minimum(at, last).clamp(max=weights.shape[1] - 1)


def _draw_sorted(weights: Tensor, kept: Tensor, top_k: npt.NDArray[np.int32], top_p: F32, u: Tensor) -> Tensor:
    """Run steps 3, 4 and 6 for rows that need sorted candidates; `kept` is the result of step 5."""
    vocab, device = weights.shape[1], weights.device
    k = torch.from_numpy(top_k.astype(np.int64)).to(device)[:, None]
    p = torch.from_numpy(top_p.astype(np.float64)).to(device)[:, None]
    nucleus = bool((top_p < 1).any())
    width = int(top_k[top_k < vocab].max(initial=1))
    if nucleus:
        width = max(width, _NUCLEUS_FIRST)
    width = min(width, vocab)
    if bool(((top_k >= vocab) & (top_p >= 1)).any()):
        width = vocab
    while True:
        best, ids = largest(weights, width)  # [R, C]
        rank = torch.arange(width, device=device)[None]
        in_k = rank < k
        below = (best.double() * in_k).cumsum(-1)
        total = (
            torch.where(k < vocab, below[:, -1:], weights.double().sum(-1, keepdim=True)) if nucleus else below[:, -1:]
        )
        enough = (below[:, -1:] >= p * total) | (p >= 1) | (k <= width)
        if width == vocab or bool(enough.all()):
            break
        width = vocab
    before = below - best.double()
    keep = in_k & ((before < p * total) | (rank == 0) | (p >= 1))
    # Back to ascending ids: dropped candidates go last, without weight.
    ids = torch.where(keep, ids, vocab).sort(-1).values
    chosen = torch.where(ids < vocab, kept.gather(1, ids.clamp(max=vocab - 1)), 0.0)
    return ids.gather(1, _pick(chosen, u)[:, None])[:, 0].clamp(max=vocab - 1)


def largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest values of each row [R, V] float32 and their ids, descending, equal ones by id.

    The order in which torch's `topk` returns equal values depends on `count`. So `topk` gets keys without equals: the
    bits of the value, made monotonic, above the id counted down.
    """
    bits = values.view(torch.int32)
    keys = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
    down = torch.arange(values.shape[1] - 1, -1, -1, device=values.device)
    keys = keys.bitwise_left_shift_(32).bitwise_or_(down)
    ids = values.shape[1] - 1 - (keys.topk(count, dim=-1).values & 0xFFFFFFFF)
    return values.gather(1, ids), ids
