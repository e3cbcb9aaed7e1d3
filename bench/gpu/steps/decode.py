"""The decode table: milliseconds of a step for each path, batch and shape, beside the least that the bytes allow."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import torch

from bench.gpu.loops import DecodeLoop, Rig, paths
from bench.gpu.plots import lines
from bench.gpu.record import Record
from bench.gpu.shapes import checkpoint
from bench.product.gpu import USUAL

BATCHES, CONTEXT, STEPS = (1, 8, 32, 128, 256), 1024, 40
GOALS_MS = {("1b", 1): 1.6, ("8b", 1): 6.5, ("8b", 128): 12.0}
"""For the best path on an H100."""
SLOW_FROM = 32
"""Gathered pages aren't measured from this batch on: they take a hundred times as long."""


def run(record: Record) -> None:
    """Fill the table path by path, the shapes in turn."""
    batches, context, steps = ((1, 2), 20, 5) if record.rehearse else (BATCHES, CONTEXT, STEPS)
    rows: list[dict[str, object]] = []
    for name in ("1b", "8b"):
        try:
            _shape(record, name, rows, batches, context, steps)
        except Exception as error:  # noqa: BLE001 - the other shape is measured all the same
            record.expect(False, f"{name}: {error!r}")
        _free(record.device)
    record.note(goals=[_goal(rows, *goal, bound) for goal, bound in GOALS_MS.items()])
    for name in ("1b", "8b"):
        of_shape = [row for row in rows if row["shape"] == name]
        labels = dict.fromkeys(str(row["path"]) for row in of_shape)
        drawn = {
            label: [(float(str(r["batch"])), float(str(r["ms"]))) for r in of_shape if r["path"] == label]
            for label in labels
        }
        lines(record.out / f"decode-{name}", f"Decode step, {name}, context {context}", "batch", "ms", drawn)


def _shape(
    record: Record, name: str, rows: list[dict[str, object]], batches: tuple[int, ...], context: int, steps: int
) -> None:
    """Add the rows of one shape. Nothing on the device outlives the call."""
    path = checkpoint(name, record.scratch, rehearse=record.rehearse)
    pages = max(batches) * -(-(context + steps) // 16)
    rig = Rig(path, record.device, num_pages=pages, batch=max(batches))
    weights = _weight_bytes(path, rig)
    buckets = (1, 2) if record.rehearse else tuple(b for b in USUAL if b in batches)
    for way in paths(rig):
        start = time.perf_counter()
        try:
            engine = rig.engine(way, buckets)
            for batch in batches:
                if way.attention == "torch-gather" and batch >= SLOW_FROM:
                    continue
                ms = DecodeLoop(engine, [context] * batch, steps).ms(steps - 3)
                read = weights + batch * context * rig.spec.kv_bytes_per_token
                rows.append(
                    {
                        "shape": name, "path": way.label, "batch": batch, "context": context, "ms": ms,
                        "tokens_per_s": 1e3 * batch / ms, "read_bytes_per_s": 1e3 * read / ms,
                    }
                )  # fmt: skip
                record.note(rows=rows)
        except Exception as error:  # noqa: BLE001 - the other paths are measured all the same
            record.expect(False, f"{name}, {way.label}: {error!r}")
        record.note(**{f"{name} {way.label} s": round(time.perf_counter() - start, 1)})


def _weight_bytes(path: Path, rig: Rig) -> int:
    """Return the bytes of weights that a step reads: all but an embedding table that isn't the output matrix too."""
    config = rig.decoder.config
    table = 0 if config.tied else config.vocab * config.dim * rig.pools.kv.element_size()
    return (path / "model.safetensors").stat().st_size - table


def _goal(rows: list[dict[str, object]], shape: str, batch: int, bound: float) -> dict[str, object]:
    found = [float(str(r["ms"])) for r in rows if r["shape"] == shape and r["batch"] == batch]
    return {"shape": shape, "batch": batch, "bound_ms": bound, "best_ms": min(found, default=None)}


def _free(device: str) -> None:
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
