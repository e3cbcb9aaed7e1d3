"""Chooses what samples, and what sums the exponentials of which log-probabilities are made."""

from __future__ import annotations

from tartlet_worker.kernels import available
from tartlet_worker.models.base import Decoder
from tartlet_worker.models.torch_decoder import TorchDecoder
from tartlet_worker.sampling.base import LogSums, Sampler
from tartlet_worker.sampling.c_sampler import CSampler
from tartlet_worker.sampling.torch_sampler import TorchSampler, log_sums, log_sums_one_by_one


def log_sums_for(decoder: Decoder, *, batch_invariant: bool) -> LogSums:
    """Return what sums exponentials in torch's samplers; if the engine is batch-invariant, bits depend on no batch."""
    if not batch_invariant:
        return log_sums
    if isinstance(decoder, TorchDecoder) and decoder.attention.name == "triton":
        from tartlet_worker.sampling import triton_log_sums  # only where Triton is there

        return triton_log_sums.log_sums
    return log_sums_one_by_one


def make(device: str, kernels: str, sums: LogSums) -> Sampler:
    """Make the C sampler if logits are on the CPU and the kernels are built, else the one in torch."""
    return CSampler() if device == "cpu" and kernels != "torch" and available() else TorchSampler(sums)
