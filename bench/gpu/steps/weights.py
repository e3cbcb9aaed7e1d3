"""Writes the checkpoints of both shapes, for the steps that load them."""

from __future__ import annotations

import time

from bench.gpu.record import Record
from bench.gpu.shapes import SHAPES, checkpoint


def run(record: Record) -> None:
    """Write them, and note how long that took."""
    for name in SHAPES:
        start = time.perf_counter()
        path = checkpoint(name, record.scratch, rehearse=record.rehearse)
        size = sum(file.stat().st_size for file in path.iterdir())
        record.note(**{name: {"bytes": size, "seconds": round(time.perf_counter() - start, 2)}})
