"""Decides whether an engine's decode steps are captured as CUDA graphs, and sets that up."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import cast

import torch

from tartlet_common.errors.registry import InvalidConfig
from tartlet_worker.attention.base import GraphAttention
from tartlet_worker.graphs.buckets import parse, up_to
from tartlet_worker.graphs.capture import CudaCapture
from tartlet_worker.graphs.decoder import GraphDecoder
from tartlet_worker.models.base import Decoder
from tartlet_worker.models.torch_decoder import TorchDecoder
from tartlet_worker.pools import Pools
from tartlet_worker.sampling.base import LogSums
from tartlet_worker.sampling.torch_sampler import log_sums
from tartlet_worker.torch_engine.memory import give_back_memory

log = logging.getLogger("tartlet.worker")


def buckets(graphs: str, device: str, listed: str, max_commands: int) -> tuple[int, ...]:
    """Return the numbers of rows to capture, ascending; () where the settings or the device rule graphs out.

    Args:
        graphs: "auto", "on" or "off".
        device: torch's name.
        listed: the numbers, separated by commas; "" for the usual ones.
        max_commands: most commands of a batch.

    Raises:
        InvalidConfig: the numbers can't be read, or graphs are "on" for a device that has none.

    Example:
        >>> buckets("auto", "cuda", "", 8), buckets("auto", "cpu", "", 8)
        ((1, 2, 4, 8), ())
    """
    try:
        rows = up_to(parse(listed), max_commands)
    except ValueError as error:
        raise InvalidConfig(role="worker", detail=f"graph_buckets {error}") from error
    if graphs == "on" and not device.startswith("cuda"):
        raise InvalidConfig(role="worker", detail=f"graphs=on: {device} has no graphs: use graphs=auto")
    return rows if graphs != "off" and device.startswith("cuda") else ()


def obstacle(decoder: Decoder) -> str:
    """Return what keeps a decoder from being captured, a clause; "" if nothing does."""
    if not isinstance(decoder, TorchDecoder):
        return "this decoder is not torch's"
    if not getattr(decoder, "capturable", True):
        return "what a layer computes depends on its values"
    if not all(hasattr(decoder.attention, name) for name in ("reaches", "static")):
        return f"attention {decoder.attention.name} can't be captured"
    return ""


def with_graphs(
    decoder: Decoder,
    pools: Pools,
    rows: tuple[int, ...],
    *,
    must: bool,
    progress: Callable[[str], None],
    log_sums: LogSums = log_sums,
) -> Decoder:
    """Capture the graphs of a decoder, or return it as it is.

    What a failed capture has taken is given back before steps run without graphs.

    Args:
        decoder: the engine's.
        pools: the engine's.
        rows: what `buckets` returned.
        must: refuse a decoder that can't be captured, or whose capture fails.
        progress: called with one line about the capture.
        log_sums: sums the exponentials of which log-probabilities are made.

    Raises:
        InvalidConfig: the decoder can't be captured or its capture fails, and it must be captured; or the device
            doesn't compute any more after a capture that failed.
        torch.OutOfMemoryError: it must be captured, and the device has no room for the graphs.
    """
    if not rows:
        return decoder
    why_not = obstacle(decoder)
    if why_not:
        if must:
            raise InvalidConfig(role="worker", detail=f"graphs=on: {why_not}: use graphs=auto")
        log.warning("decode steps run without CUDA graphs: %s", why_not)
        return decoder
    assert isinstance(decoder, TorchDecoder)
    attention = cast("GraphAttention", decoder.attention)
    made: GraphDecoder | None
    try:
        made = GraphDecoder(decoder, attention, pools, CudaCapture(pools.device), rows, log_sums)
        log.info("captured %d graphs of up to %d rows", made.capture(progress), rows[-1])
    except Exception as error:
        made = None
        if must and isinstance(error, torch.OutOfMemoryError):
            raise
        if must:
            detail = f"graphs=on: the capture failed: {type(error).__name__}: {error}: use graphs=auto"
            raise InvalidConfig(role="worker", detail=detail) from error
        log.warning("decode steps run without CUDA graphs: the capture failed", exc_info=True)
    if made is not None:
        return made
    try:
        give_back_memory(pools.device)  # now that the error holds no graph any more
    except RuntimeError as error:
        detail = f"graphs: the capture failed, and {pools.device} fails since then: {error}: use graphs=off"
        raise InvalidConfig(role="worker", detail=detail) from error
    return decoder
