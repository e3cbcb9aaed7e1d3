"""Sampling of rows whose commands bring options: penalties, bias, allowed tokens, log-probabilities.

The order is penalties, bias, allowed tokens, then the sampler's own steps (`base`). Log-probabilities are those of the
logits as the model gave them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tartlet_common.engine.sample_options import BANNED, SampleOptions
from tartlet_worker.csr import I64
from tartlet_worker.history import Histories, Told, penalised
from tartlet_worker.sampling.base import F32, SampleParams, Sampler
from tartlet_worker.sampling.portions import portions


def sample_with(
    sampler: Sampler,
    logits: Tensor,
    params: SampleParams,
    slots: npt.NDArray[np.int32],
    options: Mapping[int, SampleOptions],
    histories: Histories,
    masks: Mapping[int, npt.NDArray[np.int32]] | None = None,
) -> tuple[I64, F32, dict[int, Told]]:
    """Sample a token for each row of logits [N, V] float32 and add it to its slot's history where penalties apply.

    Args:
        sampler: chooses tokens by the changed logits.
        logits: as the model gave them; they stay unchanged.
        params: of all rows.
        slots: [N] the token slots of the rows.
        options: of some rows, by their index.
        histories: of the engine's slots.
        masks: the tokens that may be sampled, a bit for each token, of the rows that follow grammars. These masks take
            the options into account.

    Returns:
        Tokens [N], their log-probabilities [N], and for each row with options the log-probabilities that it asks for.
    """
    masks = masks or {}
    changing = [row for row, asked in options.items() if row in masks or _changes(asked)]
    changed = logits.clone() if changing else logits
    for row in changing:
        if _changes(options[row]):
            _change(changed[row], options[row], histories, int(slots[row]))
    if masks:
        _mask(changed, masks)
    token, logprob = sampler.sample(changed, params)
    for part in portions(len(changing), logits.shape[1]):
        rows = changing[part]
        logprob[rows] = sampler.logprobs(logits[rows], token[rows, None])[:, 0]
    for row in changing:
        if options[row].penalties is not None:
            histories.add(int(slots[row]), int(token[row]))
    return token, logprob, {row: _told(sampler, logits[row : row + 1], asked) for row, asked in options.items()}


_NOTHING: Final[Told] = np.zeros(0, np.int32), np.zeros(0, np.float32)


def _changes(options: SampleOptions) -> bool:
    listed = options.allowed is not None or options.mask is not None
    return listed or len(options.bias) > 0 or options.penalties is not None


def _change(row: Tensor, options: SampleOptions, histories: Histories, slot: int) -> None:
    """Change one row of logits [V] in place."""
    device = row.device
    if options.penalties is not None:
        tokens, times = histories.of(slot, options).occurrences()
        at = torch.from_numpy(tokens).to(device)
        values = penalised(row[at].double().cpu().numpy(), times, options.penalties)
        row[at] = torch.from_numpy(values).to(device, row.dtype)
    if len(options.bias):
        kept = options.bias > BANNED
        at = torch.from_numpy(options.bias_token[kept].astype(np.int64)).to(device)
        row[at] += torch.from_numpy(options.bias[kept]).to(device)
    permitted = options.permitted(len(row))
    if permitted is not None:
        row[torch.from_numpy(~permitted).to(device)] = -torch.inf


def _mask(rows: Tensor, masks: Mapping[int, npt.NDArray[np.int32]]) -> None:
    """Make the tokens without a bit in their row's mask impossible, in logits [N, V]."""
    numbers, packed = list(masks), np.stack(list(masks.values())).view(np.uint8)
    for part in portions(len(numbers), rows.shape[1]):
        bits = np.unpackbits(packed[part], axis=1, bitorder="little", count=rows.shape[1])
        at = torch.tensor(numbers[part], device=rows.device)
        hidden = torch.from_numpy(bits == 0).to(rows.device)
        rows[at] = rows[at].masked_fill(hidden, -torch.inf)


def _told(sampler: Sampler, row: Tensor, options: SampleOptions) -> Told:
    """Return the best tokens of one row [1, V] and the named ones, with their log-probabilities."""
    if not options.top and not len(options.named):
        return _NOTHING
    best = sampler.top(row, min(options.top, row.shape[1]))[0][0] if options.top else np.zeros(0, np.int64)
    ids = np.concatenate([best, options.named])
    return ids.astype(np.int32), sampler.logprobs(row, ids[None])[0]
