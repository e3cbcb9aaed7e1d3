"""The interface of a sampler and the rule that all samplers keep: filters, then inverse-CDF sampling, Philox noise.

For one row of logits l [V] (float32) and the uniform number u of `philox.uniform(seed, position, draw)`:

1. `temperature == 0`: the token has the largest logit, and the smallest id among equals. The other steps don't apply.
2. Weights are w_i = exp((l_i - max l) / temperature).
3. `top_k > 0` keeps the k largest weights; of equal weights those with smaller ids.
4. `top_p < 1` keeps a weight if the weights before it, in descending order, sum to less than top_p of the total that
   step 3 kept. The first weight always stays.
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

from tartlet_common.engine.step import Sample
from tartlet_worker.csr import I64, counts, owners, take, within

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


def needs_sorting(params: SampleParams, vocab: int) -> npt.NDArray[np.bool_]:
    """Return [N]: whether steps 3 or 4 drop something of a row of `vocab` logits."""
    cut = ((params.top_k > 0) & (params.top_k < vocab)) | (params.top_p < 1)
    return np.asarray((params.temperature > 0) & cut)


@dataclass(frozen=True, slots=True)
class Targets:
    """Where the tokens of N commands of a `sample` batch go."""

    batch: Sample
    rows: I64  # [N] the commands

    @property
    def slot(self) -> npt.NDArray[np.int32]:
        """The token slots [N]."""
        return self.batch.slot[self.rows]

    def stops(self, most: int) -> npt.NDArray[np.int32] | None:
        """Return the stop tokens of each command as [most, N], filled up with -1; None if a command has more.

        Example:
            >>> none = np.zeros(0)
            >>> batch = Sample(*[none] * 9, stop=np.array([7, 8, 9]), stop_indptr=np.array([0, 1, 1, 3]))
            >>> Targets(batch, np.array([0, 2])).stops(2).tolist()
            [[7, 8], [-1, 9]]
        """
        stops, count = np.full((most, len(self.rows)), -1, np.int32), len(self.rows)
        indices, indptr = take(self.batch.stop_indptr, self.rows)
        if count and int(counts(indptr).max()) > most:
            return None
        stops[within(indptr), owners(indptr)] = self.batch.stop[indices]
        return stops


class LogSums(Protocol):
    """Sums the exponentials of rows."""

    def __call__(self, logits: Tensor) -> Tensor:
        """Return log(sum(exp(row))) [N] float32 of rows of logits [N, V] float32."""


class Sampler(Protocol):
    """Chooses tokens for rows of logits [N, V] float32."""

    def sample(self, logits: Tensor, params: SampleParams) -> tuple[I64, F32]:
        """Sample a token for each row; return tokens [N] int64 and their log-probabilities [N] float32."""

    def logprobs(self, logits: Tensor, ids: I64) -> F32:
        """Return the log-probabilities [N, K] float32 of tokens [N, K] under softmax(l) of each row."""

    def top(self, logits: Tensor, top_k: int) -> tuple[I64, F32]:
        """Return the `top_k` most probable tokens of each row and their probabilities in the full softmax.

        Returns:
            ids [N, top_k] int64 and probabilities [N, top_k] float32, descending; equal ones by ascending id.
        """
