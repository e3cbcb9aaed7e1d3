"""Captures the graphs of the 1B shape, and holds replays over changing tables against eager steps."""

from __future__ import annotations

import time
from typing import Any, cast

import numpy as np

from bench.gpu.loops import DecodeLoop, Rig, Way, free_bytes, paths
from bench.gpu.record import Record
from bench.gpu.shapes import checkpoint
from bench.product.gpu import USUAL, FlashInfer, GraphDecoder, bucket_of, graph_bytes

STEPS, BATCHES, CONTEXTS = 25, (1, 3, 8, 33, 100), (40, 1500)
CLOSE, CLOSE_FLOAT32 = 0.08, 1e-3
"""Difference of log-probabilities in bf16 that other orders of additions explain."""

MARGIN = 1.1
"""Bytes that graphs may hold over their estimate: a worker's share of the GPU leaves a tenth free."""


def run(record: Record) -> None:
    """Note seconds and bytes of the capture, and how far both ways tell the same tokens."""
    steps, batches, most = (2, (3,), 40) if record.rehearse else (STEPS, BATCHES, CONTEXTS[1])
    buckets = (2, 4) if record.rehearse else USUAL
    least = min(CONTEXTS[0], most // 2)
    pages = max(batches) * -(-(most + steps + 1) // 16)
    rig = Rig(checkpoint("1b", record.scratch, rehearse=record.rehearse), record.device, num_pages=pages, batch=256)
    config, close = rig.decoder.config, CLOSE_FLOAT32 if record.rehearse else CLOSE
    for way in [w for w in paths(rig) if w.graphs]:
        rng = np.random.default_rng(3)
        contexts = {batch: rng.integers(least, most, batch).tolist() for batch in batches}
        before, start = free_bytes(record.device), time.perf_counter()
        engine = rig.engine(way, buckets)
        captured = time.perf_counter() - start
        held = before - free_bytes(record.device)
        item = rig.pools.kv.element_size()
        estimate = graph_bytes(config, rows=buckets[-1], page_size=16, element_bytes=item)
        found: dict[str, object] = {"capture_s": captured, "held_bytes": held, "estimated_bytes": estimate}
        if not record.rehearse:  # on a CPU, what other processes take counts as well
            record.expect(held <= MARGIN * estimate, f"{way.label}: graphs hold {held} bytes, estimated {estimate}")
        rows: list[dict[str, object]] = []
        told = {
            (batch, hot): _told(rig, DecodeLoop(engine, contexts[batch], steps, hot=hot), steps)
            for batch in batches
            for hot in (False, True)
        }
        assert rig.captured is not None
        replays = rig.captured.replays
        attends = {batch: _attends(way, rig.captured, batch, buckets) for batch in batches}
        for (batch, hot), (tokens, logprobs) in told.items():
            eager = rig.engine(Way(attends[batch], graphs=False))
            others, values = _told(rig, DecodeLoop(eager, contexts[batch], steps, hot=hot), steps)
            same = np.cumprod(tokens == others, axis=0)
            first = float(np.abs(logprobs[0] - values[0])[same[0] > 0].max(initial=0.0))
            rows.append({"batch": batch, "hot": hot, "same": float(same.mean()), "first_difference": first})
            record.expect(bool(np.isfinite(logprobs).all()), f"{way.label}, batch {batch}: a value is not finite")
            record.expect(first <= close, f"{way.label}, batch {batch}: log-probabilities differ by {first:.3g}")
            record.expect(float(same[0].mean()) >= 0.9, f"{way.label}, batch {batch}: first tokens differ")
        record.expect(replays == 2 * steps * len(batches), f"{way.label}: not every step was a replay")
        record.note(**{way.attention: found | {"rows": rows}})


def _attends(way: Way, captured: GraphDecoder, batch: int, buckets: tuple[int, ...]) -> str:
    """Return the name of what attends to a batch in a way's graphs: FlashInfer leaves few rows to another."""
    attention, rows = captured.attention, bucket_of(batch, buckets)
    if rows is None or not isinstance(attention, FlashInfer):
        return way.attention
    return str(cast("Any", attention.in_graphs(rows)).name)


def _told(rig: Rig, loop: DecodeLoop, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens and their log-probabilities, [steps, rows] each."""
    rig.restore()
    tokens, logprobs = zip(*(loop.step() for _ in range(steps)), strict=True)
    return np.stack(tokens), np.stack(logprobs)
