"""Sampling by the C kernels, one row at a time. Only rows with a filter that needs an order are sorted."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from tartlet_worker.csr import I64
from tartlet_worker.kernels import library
from tartlet_worker.kernels.library import address
from tartlet_worker.sampling.base import F32, SampleParams
from tartlet_worker.sampling.philox import uniform


class CSampler:
    """`Sampler` for logits on the CPU."""

    def __init__(self) -> None:
        loaded = library()
        assert loaded is not None, "the caller asks `available` first"
        self._lib = loaded

    def sample(self, logits: Tensor, params: SampleParams) -> tuple[I64, F32]:
        """See `Sampler`."""
        best, log_sum = self._stats(logits)
        token = best
        if params.temperature.any():
            n, vocab = logits.shape
            token = np.empty_like(best)
            noise = uniform(params.seed, params.position, params.draw)
            columns = (params.temperature, params.top_k, params.top_p, params.min_p, noise)
            arrays = [np.ascontiguousarray(c) for c in columns]
            pointers = map(address, arrays)
            self._lib.draw_rows(logits.data_ptr(), n, vocab, *pointers, address(best), address(token))
        with np.errstate(invalid="ignore", over="ignore"):  # rows without a finite logit, or of both ends of the range
            return token, logits.numpy()[np.arange(len(token)), token] - log_sum

    def logprobs(self, logits: Tensor, ids: I64) -> F32:
        """See `Sampler`."""
        _, log_sum = self._stats(logits)
        with np.errstate(invalid="ignore", over="ignore"):
            return np.asarray(np.take_along_axis(logits.numpy(), ids, 1) - log_sum[:, None])

    def top(self, logits: Tensor, top_k: int) -> tuple[I64, F32]:
        """See `Sampler`."""
        _, log_sum = self._stats(logits)
        n, vocab = logits.shape
        ids = np.empty((n, top_k), np.int64)
        self._lib.top_rows(logits.data_ptr(), n, vocab, top_k, address(ids))
        with np.errstate(invalid="ignore", over="ignore"):
            return ids, np.exp(np.take_along_axis(logits.numpy(), ids, 1) - log_sum[:, None])

    def _stats(self, logits: Tensor) -> tuple[I64, F32]:
        """Return for each row the index of its largest value (the smallest among equals), and its logsumexp."""
        assert logits.is_contiguous()
        n, vocab = logits.shape
        best, log_sum = np.empty(n, np.int64), np.empty(n, np.float32)
        self._lib.row_stats(logits.data_ptr(), n, vocab, address(best), address(log_sum))
        return best, log_sum
