"""Captures a small graph of attention, and replays it over other page tables than those of its capture."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tartlet_worker.attention.base import AttentionBatch, GraphAttention, StaticRows
from tartlet_worker.attention.flashinfer import FEW_ROWS
from tartlet_worker.attention.torch_gather import TorchGather
from tartlet_worker.checkpoints.model_config import ModelConfig
from tartlet_worker.graphs.capture import Capture
from tartlet_worker.torch_engine import attention_choice
from tartlet_worker.torch_engine.differing import CLOSE, farthest, windows
from tartlet_worker.torch_engine.finding import Finding

_SIZE = 4  # tokens of a page
_WIDTH = 326  # pages of a row: kernels that read runs of 512 columns read more than two
_POSITIONS = ((2, 17), (1299, 4), (8, 1030))
"""Of a pair of rows: for the capture, then for each replay."""
_MANY_PAIRS = FEW_ROWS // 2 + 1
"""Pairs in a graph in which FlashInfer attends. It leaves fewer rows to another implementation."""
_REMEDY = "Set TARTLET_WORKER_GRAPHS=off, and report this with the GPU's name and driver."

I32 = npt.NDArray[np.int32]


def graph_finding(name: str, device: str, config: ModelConfig, capture: Capture) -> Finding:
    """Hold the replays of captured graphs of few rows, and for FlashInfer of many, against gathered pages, in bf16.

    Args:
        name: of the path of attention.
        device: torch's name.
        config: of the model.
        capture: captures the graphs.
    """
    try:
        found = [
            difference(name, device, config, torch.bfloat16, capture, pairs)
            for pairs in ((1, _MANY_PAIRS) if name == "flashinfer" else (1,))
        ]
    except Exception as caught:  # noqa: BLE001 - whatever a capture or a kernel raises is the finding
        return Finding("cuda graphs", "fail", f"{type(caught).__name__}: {caught}", _REMEDY)
    errors = [error for error in found if error is not None]
    if not errors:
        remedy = "Set TARTLET_WORKER_ATTENTION=auto, and see what the lines about triton and flashinfer say."
        return Finding("cuda graphs", "warn", f"attention {name} can't be captured, so steps run without", remedy)
    error = max(errors)
    if error > CLOSE:
        return Finding("cuda graphs", "fail", f"replays differ by {error:.3g} of the largest number", _REMEDY)
    return Finding("cuda graphs", "ok", f"captured and replayed {name}; at most {error:.1g} of the largest number off")


@torch.inference_mode()
def difference(
    name: str, device: str, config: ModelConfig, dtype: torch.dtype, capture: Capture, pairs: int
) -> float | None:
    """Return how far two replays are from gathered pages in float32, as `farthest` says, through each window.

    None if the path of attention can't be captured. The graph has `pairs` pairs of rows.
    """
    looked = windows(config, more=name != "flashinfer")
    config = replace(config, windows=looked)
    made, _ = attention_choice.make(name, config, device, batch_invariant=False, dtype=dtype, page_size=_SIZE)
    if not isinstance(made, GraphAttention):
        return None
    count = pairs * len(_POSITIONS[0])
    generator = torch.Generator(device).manual_seed(1)
    kv_shape = (2, count * _WIDTH, config.kv_heads, _SIZE, config.head_dim)
    q = torch.empty(count, config.heads, config.head_dim, dtype=dtype, device=device)
    kv = torch.randn(kv_shape, dtype=dtype, device=device, generator=generator)
    rows = StaticRows(
        torch.zeros(count, dtype=torch.int32, device=device),
        torch.zeros(count, _WIDTH, dtype=torch.int32, device=device),
        _SIZE,
    )
    static = made.static(rows, made.reaches(count, _SIZE * _WIDTH)[-1])
    results: dict[int | None, Tensor] = {window: torch.empty_like(q) for window in looked}

    def body() -> None:
        static.start()
        for window, result in results.items():
            result.copy_(static.run(q, kv, window).view_as(q))

    replay, worst = None, 0.0
    for turn, at in enumerate(_POSITIONS):
        position = np.tile(np.array(at, np.int32), pairs)
        pages = np.random.default_rng(turn).permutation(count * _WIDTH).astype(np.int32).reshape(count, _WIDTH)
        rows.position.copy_(torch.from_numpy(position))
        rows.pages.copy_(torch.from_numpy(pages))
        q.normal_(generator=generator)
        static.fill((position // _SIZE + 1).astype(np.int32), position)
        if replay is None:
            replay = capture.graph(body)
        else:
            replay()
            worst = max(worst, _error(results, q, kv, position, pages))
    return worst


def _error(results: dict[int | None, Tensor], q: Tensor, kv: Tensor, position: I32, pages: I32) -> float:
    """Return how far the results of layers with these windows are from those of gathered pages, at most."""
    truth = TorchGather(kv.shape[2], str(q.device))
    columns = np.tile(np.arange(pages.shape[1] * _SIZE, dtype=np.int32), (len(pages), 1))
    number = np.full(len(pages), pages.shape[1], np.int32)
    prepared = truth.prepare(AttentionBatch(np.arange(len(pages) + 1), position, pages, number, columns, {}))
    wide = q.float(), kv.float()
    return max(farthest(result, truth.run(prepared, *wide, window).view_as(q)) for window, result in results.items())
