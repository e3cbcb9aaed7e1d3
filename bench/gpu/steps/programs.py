"""Time a token through core-Wasm programs over the bare loop's (Pie 7.4), batch 1 and 32, for both shapes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from pathlib import Path

import torch

import tartlet
from bench.engine_loop import BareLoop
from bench.gpu.paths import guests
from bench.gpu.record import Record
from bench.gpu.shapes import checkpoint
from bench.guests.build import build
from bench.harness.intervals import median
from bench.harness.stack import connected
from bench.overhead import PROMPT_TOKENS, decode
from bench.product.worker import load_engine

PROGRAMS, ROUNDS = (1, 32), 3
NEW_TOKENS, NEW_TO_REHEARSE = 256, 64
"""A token takes milliseconds here, so that the first message and the last one would show among fewer."""
GOALS = {"1b": 1.02, "8b": 1.01}


def run(record: Record) -> None:
    """Measure shape by shape: the bare loop first, then programs on a stack of its own."""
    rows: list[dict[str, object]] = []
    for name in ("1b",) if record.rehearse else ("1b", "8b"):
        path = checkpoint(name, record.scratch, rehearse=record.rehearse)
        programs = (1, 2) if record.rehearse else PROGRAMS
        new = NEW_TO_REHEARSE if record.rehearse else NEW_TOKENS
        bare = _bare(path, record.device, programs, new)
        through = asyncio.run(_through(path, record, programs, new))
        for count in programs:
            ratio = through[count] / bare[count]
            rows.append(
                {
                    "shape": name, "programs": count, "bare_ms": 1e3 * bare[count], "program_ms": 1e3 * through[count],
                    "ratio": ratio, "goal": GOALS[name],
                }
            )  # fmt: skip
            record.note(rows=rows)


def _bare(path: Path, device: str, programs: tuple[int, ...], new: int) -> dict[int, float]:
    pages = max(programs) * -(-(PROMPT_TOKENS + new) // 16)
    embeds = max(programs) * (PROMPT_TOKENS + 2) + 64
    buckets = _words(programs) if device.startswith("cuda") else ""
    engine = load_engine(path, device=device, num_pages=pages, num_embeds=embeds, graph_buckets=buckets)
    prompt = [10 + i * 7 % 200 for i in range(PROMPT_TOKENS)]
    found = {}
    for count in programs:
        loop = BareLoop(engine, count, PROMPT_TOKENS, new)
        loop.run([prompt] * count)
        found[count] = median([loop.run([prompt] * count).per_token_s for _ in range(ROUNDS)])
    del engine, loop
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
    return found


async def _through(path: Path, record: Record, programs: tuple[int, ...], new: int) -> dict[int, float]:
    source = tartlet.Source.from_file(guest(record))
    found = {}
    async with connected(model=path, flags={"worker": worker_flags(record, programs)}) as client:
        await decode(client, source, 1, "ahead")
        for count in programs:
            times = [(await decode(client, source, count, "ahead", tokens=new))[0] for _ in range(ROUNDS)]
            found[count] = median(times)
    return found


def guest(record: Record) -> Path:
    """Return the core-Wasm program: the bundle's, or one that is compiled here."""
    return (guests() or build(record.scratch / "guests"))["decode"]


def _words(buckets: Sequence[int]) -> str:
    return ",".join(map(str, buckets))


def worker_flags(record: Record, buckets: Sequence[int]) -> list[str]:
    """Return the flags of a stack's worker on this machine, whose graphs have so many rows."""
    if record.rehearse:
        return ["--kv-memory-bytes", str(64 << 20)]
    flags = ["--device", record.device, "--dtype", "bfloat16", "--kv-memory-bytes", str(8 << 30)]
    return [*flags, "--graph-buckets", _words(buckets)]
