"""The bare loop of `bench engine` without graphs: prefill and decode, by each implementation of attention."""

from __future__ import annotations

from bench.engine_loop import BareLoop
from bench.gpu.loops import Rig, paths
from bench.gpu.record import Record
from bench.gpu.shapes import checkpoint

PROMPT, NEW = 128, 32


def run(record: Record) -> None:
    """Note the milliseconds of a prompt and of a token for batches of 1 and 32."""
    prompt, new = (4, 2) if record.rehearse else (PROMPT, NEW)
    batches = (1, 2) if record.rehearse else (1, 32)
    pages = max(batches) * -(-(prompt + new) // 16)
    rig = Rig(checkpoint("1b", record.scratch, rehearse=record.rehearse), record.device, num_pages=pages, batch=32)
    rows: list[dict[str, object]] = []
    for way in paths(rig):
        if way.graphs:
            continue
        engine = rig.engine(way)
        for batch in batches:
            loop = BareLoop(engine, batch, prompt, new)
            prompts = [[10 + (i * 7 + b) % 200 for i in range(prompt)] for b in range(batch)]
            loop.run(prompts)
            timing = loop.run(prompts)
            rows.append(
                {
                    "path": way.label, "batch": batch, "prefill_ms": 1e3 * timing.prefill_s,
                    "token_ms": 1e3 * timing.per_token_s,
                }
            )  # fmt: skip
            record.note(rows=rows)
