"""Random batches with commands of each class, by FlashInfer and by gathered pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch

from bench.gpu.loops import Rig, unbuilt_modules
from bench.gpu.record import Record
from bench.product.gpu import AttentionBatch, FlashInfer, ModelConfig, Pools, PoolSizes, Shape, TorchGather, classify
from tests.worker.mixed_batches import KINDS, Batches
from tests.worker.seeds import SEED

SHAPES: Final = ((64, 2), (128, 4), (256, 1))
"""Head size, and query heads of each key head. Decode runs with and without tensor cores."""
KV_HEADS: Final = 2
WINDOWS: Final = (None, 37)
PAGE_SIZES: Final = (1, 4, 16)
PAGES: Final = 400
CONTEXTS: Final = (3, 40)
"""Pages of a context, at most. The longer ones are split among blocks of threads."""
SEEDS, SEEDS_TO_REHEARSE = 4, 2
CLOSE, CLOSE_FLOAT32 = 3e-2, 1e-4
"""Difference of a result from gathered pages, over the largest number of its query's result."""
PLANNED: Final = {Shape.DECODE, Shape.APPEND, Shape.SEEN, Shape.MASKED}


def compare_classes(record: Record, rig: Rig, shapes: Sequence[tuple[int, int]]) -> None:
    """Run random batches; note the largest difference for each shape of heads, and expect all classes to be met.

    Args:
        record: of the step.
        rig: whose model's configuration, device and dtype are taken.
        shapes: of heads; none: the model's own.
    """
    model, dtype = rig.decoder.config, rig.pools.kv.dtype
    record.note(seed=SEED)
    met: Counter[str] = Counter()
    found = []
    for dim, group in shapes or [(model.head_dim, model.group)]:
        config = replace(
            model, layers=len(WINDOWS), windows=WINDOWS, head_dim=dim, heads=group * KV_HEADS, kv_heads=KV_HEADS
        )
        if missing := unbuilt_modules(config, rig):
            record.expect(False, f"heads of {dim}: {missing}")  # the others are compared all the same
            continue
        worst = max(
            _difference(config, rig.device, dtype, met, seed=seed, size=size, most=most)
            for size in PAGE_SIZES
            for most in CONTEXTS
            for seed in range(SEEDS_TO_REHEARSE if record.rehearse else SEEDS)
        )
        found.append({"head_dim": dim, "group": group, "difference": worst})
        record.note(classes=found, commands=dict(met))
        close = CLOSE_FLOAT32 if dtype == torch.float32 else CLOSE
        record.expect(worst <= close, f"heads of {dim}, {group} a key head: results differ by {worst:.3g}")
    record.expect(set(met) >= {shape.name for shape in PLANNED}, f"some class was not met: {dict(met)}")


def _difference(
    config: ModelConfig, device: str, dtype: torch.dtype, met: Counter[str], *, seed: int, size: int, most: int
) -> float:
    """Return how far FlashInfer is from gathered pages for one batch, in all of the model's windows."""
    pools = Pools(PoolSizes(size, PAGES - 1, 4, 4, 0, 1), replace(config, layers=1, windows=(None,)), dtype, device)
    batches = Batches(seed, size, pages=PAGES, most=most)
    batch: AttentionBatch = batches.draw(batches.rng.permutation(KINDS).tolist(), pools)
    met.update(Shape(shape).name for shape in classify(batch, windowed=True).shape.tolist())
    gather = TorchGather(KV_HEADS, device)
    mine = FlashInfer(config, device, dtype=dtype, page_size=size, rest=gather)
    rows = int(batch.query_indptr[-1])
    q = torch.randn(rows, config.heads, config.head_dim, dtype=dtype, device=device)
    kv = torch.randn(2, PAGES + 1, KV_HEADS, size, config.head_dim, dtype=dtype, device=device)
    prepared, wanted = mine.prepare(batch), gather.prepare(batch)
    worst = 0.0
    for window in config.windows:
        got = mine.run(prepared, q, kv, window).float()
        want = gather.run(wanted, q.float(), kv.float(), window)
        scale = want.abs().amax(1).clamp(min=1e-3)  # a query that sees nothing gets zeros
        error = float(((got - want).abs().amax(1) / scale).max())
        worst = max(worst, error if np.isfinite(error) else float("inf"))
    return worst
