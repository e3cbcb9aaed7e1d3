"""FlashInfer: whether it can be imported, and whether its decode steps and commands of each class tell the truth."""

from __future__ import annotations

import importlib
import time

import numpy as np

from bench.gpu.classes import SHAPES, compare_classes
from bench.gpu.loops import DecodeLoop, Rig, Way, flashinfer_lacks
from bench.gpu.record import Record
from bench.gpu.shapes import checkpoint

CLOSE, CLOSE_FLOAT32 = 0.08, 1e-3
PAGE_SIZES = (1, 5, 16, 32)


def run(record: Record) -> None:
    """Import it, then hold decode steps and random batches against gathered pages for several page sizes.

    What is missing is a failure, unless the run goes without FlashInfer.
    """
    start = time.perf_counter()
    try:
        module = importlib.import_module("flashinfer")
    except Exception as error:  # noqa: BLE001 - whatever keeps it out is what the record should say
        record.note(imported=repr(error))
        record.lacks_flashinfer(f"flashinfer can't be imported: {error!r}")
    record.note(imported=getattr(module, "__version__", "?"), import_s=round(time.perf_counter() - start, 2))
    rows: list[dict[str, object]] = []
    for size in PAGE_SIZES[1:2] if record.rehearse else PAGE_SIZES:
        path = checkpoint("1b", record.scratch, rehearse=record.rehearse)
        rig = Rig(path, record.device, num_pages=8 * -(-320 // size), batch=8, page_size=size)
        if lacks := flashinfer_lacks(rig):
            record.lacks_flashinfer(lacks)
        _decode(record, rig, size, rows)
        if size == PAGE_SIZES[1]:
            compare_classes(record, rig, [] if record.rehearse else SHAPES)


def _decode(record: Record, rig: Rig, size: int, rows: list[dict[str, object]]) -> None:
    """Make one decode step by FlashInfer and one by gathered pages, of eight rows."""
    contexts = np.random.default_rng(size).integers(1, 300, 8).tolist()
    told = []
    for name in ("flashinfer", "torch-gather"):
        rig.restore()
        begun = time.perf_counter()
        told.append(DecodeLoop(rig.engine(Way(name, graphs=False)), contexts, 2).step())
        record.note(**{f"{name}, page size {size}, s": round(time.perf_counter() - begun, 2)})
    same = told[0][0] == told[1][0]
    first = float(np.abs(told[0][1] - told[1][1])[same].max(initial=0.0))
    rows.append({"page_size": size, "same": float(same.mean()), "difference": first})
    record.note(rows=rows)
    record.expect(
        first <= (CLOSE_FLOAT32 if record.rehearse else CLOSE),
        f"page size {size}: log-probabilities differ by {first:.3g}",
    )
    record.expect(float(same.mean()) >= 0.75, f"page size {size}: tokens differ")
