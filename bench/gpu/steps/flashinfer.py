"""FlashInfer: whether it can be imported, and whether its decode steps and commands of each class tell the truth."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence

import numpy as np
import torch

from bench.gpu.classes import SHAPES, compare_classes
from bench.gpu.loops import DecodeLoop, Rig, Way, flashinfer_lacks
from bench.gpu.record import Record
from bench.gpu.shapes import checkpoint

CLOSE, CLOSE_FLOAT32 = 0.1, 1e-3
"""Difference of log-probabilities that roundings explain: 3 units in the last place of bf16 logits between 4 and 8."""
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
    """Make one decode step by FlashInfer and one by gathered pages, of eight rows, and compare each row."""
    contexts = np.random.default_rng(size).integers(1, 300, 8).tolist()
    tokens, said = [], []
    for name in ("flashinfer", "torch-gather"):
        rig.restore()
        begun = time.perf_counter()
        loop = DecodeLoop(rig.engine(Way(name, graphs=False)), contexts, 2)
        tokens.append(loop.step()[0])
        said.append(loop.distributions())
        record.note(**{f"{name}, page size {size}, s": round(time.perf_counter() - begun, 2)})
    differ = differences(tokens, said)
    spread = (said[0] - said[1]).square().mean(-1).sqrt()
    rows.append(
        {
            "page_size": size, "same": float((tokens[0] == tokens[1]).mean()), "difference": max(differ),
            "differences": differ, "spread": spread.tolist(),
        }
    )  # fmt: skip
    record.note(rows=rows)
    close = CLOSE_FLOAT32 if record.rehearse else CLOSE
    wrong = [row for row, difference in enumerate(differ) if not difference <= close]
    record.expect(not wrong, f"page size {size}: rows {wrong} differ by {max(differ):.3g} in log-probabilities")


def differences(tokens: Sequence[np.ndarray], said: Sequence[torch.Tensor]) -> list[float]:
    """Return for each row how far two ways differ in the log-probability of the token that either chose.

    Where they chose different tokens, both are nearly as probable, or a row is wrong.

    Args:
        tokens: [rows] of each way.
        said: log-probabilities [rows, vocab] of each way.
    """
    chosen = torch.from_numpy(np.stack(tokens, 1).astype(np.int64)).to(said[0].device)
    one, other = (way.gather(1, chosen) for way in said)
    return [float(number) for number in (one - other).abs().amax(1)]
