"""The interface of a sampler and the rule that all samplers keep: filters, then inverse-CDF sampling, Philox noise.

For one row of logits l [V] (float32) and the uniform number u of `philox.uniform(seed, position, draw)`:

1. `temperature == 0`: the token is the largest logit's, the smallest id among equals; nothing below applies.
2. Weights are w_i = exp((l_i - max l) / temperature).
3. `top_k > 0` keeps the k largest weights, of equal ones those with smaller ids.
4. `top_p < 1` keeps, of those in that descending order, each whose preceding ones sum to less than top_p of the kept
   total (the first always stays).
5. `min_p > 0` keeps those with w_i >= min_p * max w.
6. The token is the first id, in ascending order of ids, at which the running sum (float64) of kept weights exceeds
   u * total.

`logprob` is the token's log-probability under softmax(l), without temperature and filters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tartlet_worker.csr import I64

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SampleParams:
    """Parameters of N rows, as in `tartlet_common.engine.step.Sample`."""

    temperature: F32
    top_k: npt.NDArray[np.int32]
    top_p: F32
    min_p: F32
    seed: npt.NDArray[np.uint64]
    draw: npt.NDArray[np.uint32]
    position: npt.NDArray[np.int32]


class Sampler(Protocol):
    """What is done with rows of logits [N, V] float32."""

    def sample(self, logits: Tensor, params: SampleParams) -> tuple[I64, F32]:
        """Tokens [N] int64 and their log-probabilities [N] float32."""

    def top(self, logits: Tensor, top_k: int) -> tuple[I64, F32]:
        """The `top_k` most likely tokens of each row, ids [N, top_k] int64, and probabilities of the full softmax.

        Descending, equal ones by ascending id.
        """
