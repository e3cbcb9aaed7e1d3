"""Sampling by the C kernels: a row at a time, without sorting what no filter asks for."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tartlet_worker.kernels import library
from tartlet_worker.philox import uniform
from tartlet_worker.sampling import SampleParams


class CSampler:
    """`Sampler` for logits on the CPU."""

    def __init__(self) -> None:
        loaded = library()
        assert loaded is not None, "the caller asks `available` first"
        self._lib = loaded

    def sample(self, logits: Tensor, params: SampleParams) -> tuple[Tensor, Tensor]:
        """See `Sampler`."""
        best, log_sum = self._stats(logits)
        token = best
        if params.temperature.any():
            n, vocab = logits.shape
            token = torch.empty_like(best)
            noise = uniform(params.seed, params.position, params.draw)
            columns = (params.temperature, params.top_k, params.top_p, params.min_p, noise)
            arrays = [np.ascontiguousarray(c) for c in columns]
            pointers = (a.ctypes.data for a in arrays)
            self._lib.draw_rows(logits.data_ptr(), n, vocab, *pointers, best.data_ptr(), token.data_ptr())
        return token, logits.gather(1, token[:, None])[:, 0] - log_sum

    def top(self, logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
        """See `Sampler`."""
        _, log_sum = self._stats(logits)
        n, vocab = logits.shape
        ids = torch.empty(n, top_k, dtype=torch.int64)
        self._lib.top_rows(logits.data_ptr(), n, vocab, top_k, ids.data_ptr())
        return ids, torch.exp(logits.gather(1, ids) - log_sum[:, None])

    def _stats(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Of each row: the index of its largest value, the smallest among equals, and its logsumexp."""
        assert logits.is_contiguous()
        n, vocab = logits.shape
        best, log_sum = torch.empty(n, dtype=torch.int64), torch.empty(n)
        self._lib.row_stats(logits.data_ptr(), n, vocab, best.data_ptr(), log_sum.data_ptr())
        return best, log_sum
