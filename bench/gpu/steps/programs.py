"""Time a token through core-Wasm programs over the bare loop's (Pie 7.4), batch 1 and 32, for both shapes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import tartlet
from bench.gpu import measured_worker
from bench.gpu.measured_worker import Request
from bench.gpu.paths import guests
from bench.gpu.record import Record
from bench.gpu.shapes import checkpoint
from bench.guests.build import build
from bench.harness.intervals import median
from bench.harness.stack import running_stack
from bench.overhead import PROMPT_TOKENS, decode

PROGRAMS, ROUNDS = (1, 32), 3
NEW_TOKENS, NEW_TO_REHEARSE = 256, 64
"""A token takes milliseconds here, so that the first message and the last one would show among fewer."""
GOALS = {"1b": 1.02, "8b": 1.01}


def run(record: Record) -> None:
    """Measure shape by shape: a stack whose worker measures the bare loop before it serves, then programs on it."""
    rows: list[dict[str, object]] = []
    for name in ("1b",) if record.rehearse else ("1b", "8b"):
        path = checkpoint(name, record.scratch, rehearse=record.rehearse)
        programs = (1, 2) if record.rehearse else PROGRAMS
        new = NEW_TO_REHEARSE if record.rehearse else NEW_TOKENS
        bare, through = asyncio.run(_measured(name, path, record, programs, new))
        for count in programs:
            ratio = through[count] / bare[count]
            rows.append(
                {
                    "shape": name, "programs": count, "bare_ms": 1e3 * bare[count], "program_ms": 1e3 * through[count],
                    "ratio": ratio, "goal": GOALS[name],
                }
            )  # fmt: skip
            record.note(rows=rows)


async def _measured(
    name: str, path: Path, record: Record, programs: tuple[int, ...], new: int
) -> tuple[dict[int, float], dict[int, float]]:
    """Return the seconds a token of the bare loop and of programs, by number of programs, of a model loaded once."""
    file = record.scratch / f"bare-{name}.json"  # beside the records it would look like one
    env = Request(programs, PROMPT_TOKENS, new, ROUNDS).write(file)
    source = tartlet.Source.from_file(guest(record))
    begun, through = time.perf_counter(), {}
    flags, modules = {"worker": worker_flags(record, programs)}, {"worker": measured_worker.__name__}
    async with (
        running_stack(model=path, flags=flags, env=env, modules=modules) as stack,
        tartlet.AsyncClient(stack.address) as client,
    ):
        bare = measured_worker.answer(file)
        record.note(**{f"{name}: s until it serves": round(time.perf_counter() - begun, 1), f"{name}: bare": bare})
        await decode(client, source, 1, "ahead")
        for count in programs:
            times = [(await decode(client, source, count, "ahead", tokens=new))[0] for _ in range(ROUNDS)]
            through[count] = median(times)
    record.note(**{f"{name}: s": round(time.perf_counter() - begun, 1)})
    return bare, through


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
