"""What a journal costs programs that decode: none, in files, and in a Redis that writes each record to its disk.

The programs are those of `overhead`: 88M parameters, random, one torch thread, prompt 128, 64 tokens,
run-ahead 4. The variants take turns in every round. *over device_s* is the wall time of decoding over the seconds that
the engine computed meanwhile. *over none* is that of a variant over that of programs without a journal in the same
round.

The delay is the time from the runtime's taking a token to its arrival at the client, for programs that send each token.
What a program with a journal in Redis sends waits until the record of the token is on the disk. A note says how long
one append takes by itself, with a blocking client on the idle Redis, and the `fdatasync` of as many bytes.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import numpy as np
import redis

import tartlet
from bench.harness import report
from bench.harness.intervals import bootstrap_median, median
from bench.harness.redis import redis_server
from bench.harness.stack import connected
from bench.overhead import HERE, NEW_TOKENS, PROGRAMS, PROMPT_TOKENS, RUN_AHEAD, TOKENIZER, decode
from bench.product.common import install_uvloop

STORES = {"none": "off", "files": "on", "Redis": "on"}
"""Where journals are, and the durability of the launches."""
GOAL_OVER_NONE = 1.02
GOAL_DELAY_MS = 2.0

ALONE = 200
RECORD = b"r" * 200
"""Appends that are measured by themselves, and the bytes of each."""

Seen = dict[tuple[str, int], list[float]]  # (store, programs) -> one value a round
Delays = dict[tuple[str, int], list[float]]  # (store, programs) -> milliseconds of every token


@asynccontextmanager
async def clients(checkpoint: Path) -> AsyncIterator[dict[str, tartlet.AsyncClient]]:
    """Start a stack with files and one with a Redis; programs without a journal run on that with the Redis."""
    from bench.harness.dtypes import quick_dtype  # imports torch, see below

    worker = ["--dtype", quick_dtype(), "--max-batch-tokens", str(max(PROGRAMS) * PROMPT_TOKENS)]
    async with AsyncExitStack() as stacks:
        url = stacks.enter_context(redis_server())
        files = await stacks.enter_async_context(connected(model=checkpoint, flags={"worker": worker}))
        flags = {"worker": worker, "runtime": ["--journal-url", url]}
        redis = await stacks.enter_async_context(connected(model=checkpoint, flags=flags))
        yield {"none": redis, "files": files, "Redis": redis}


def alone_ms() -> tuple[float, float]:
    """Return the median milliseconds of an append to an idle Redis, and of an `fdatasync` of as much."""
    appends, syncs = [], []
    with redis_server() as url, redis.Redis.from_url(url) as client, tempfile.TemporaryFile(buffering=0) as file:
        for _ in range(ALONE):
            begin_s = time.perf_counter()
            client.xadd("alone", {"record": RECORD})
            appended_s = time.perf_counter()
            file.write(RECORD)
            os.fdatasync(file.fileno())
            appends.append(1e3 * (appended_s - begin_s))
            syncs.append(1e3 * (time.perf_counter() - appended_s))
    return median(appends), median(syncs)


async def delays_ms(client: tartlet.AsyncClient, source: tartlet.Source, programs: int, durability: str) -> list[float]:
    """Have programs send each token, and return the milliseconds that each took to arrive."""
    args = [str(n) for n in (PROMPT_TOKENS, NEW_TOKENS, RUN_AHEAD)]
    specs = [tartlet.LaunchSpec(source=source, args=args, durability=durability)] * programs
    found: list[float] = []
    async for _, event in client.run_many(specs):
        if isinstance(event, tartlet.Message):
            found.append((time.time_ns() - int(event.data)) / 1e6)
        elif isinstance(event, tartlet.TartletError):
            raise event
        elif isinstance(event, tartlet.Ended) and not event.success:
            raise RuntimeError(f"a program failed: {event.error}")
    if len(found) < programs * (NEW_TOKENS - RUN_AHEAD):  # tokens that are half a character come with the next
        raise RuntimeError(f"{len(found)} of {programs * NEW_TOKENS} tokens arrived")
    return found


async def measure(repeat: int) -> tuple[Seen, Delays]:
    """Measure all rounds; the order is rotated by one in each."""
    import torch  # takes seconds, which nobody wants to wait for --help

    from bench.product.worker import LLAMA_88M, random_checkpoint

    scratch = Path(tempfile.mkdtemp(prefix="tt-"))
    seen: Seen = {}
    delays: Delays = {}
    decoding, dated = (tartlet.Source.from_file(HERE / "guests" / f"{name}.py") for name in ("decode", "dated"))
    try:
        random_checkpoint(scratch / "llama-88m", LLAMA_88M, dtype=torch.bfloat16)
        shutil.copy(TOKENIZER, scratch / "llama-88m")
        async with clients(scratch / "llama-88m") as found:
            for store, durability in STORES.items():  # warms up: compiles, maps, fills caches
                await decode(found[store], decoding, 1, "ahead", durability)
                await delays_ms(found[store], dated, 1, durability)
            order = list(STORES)
            for i in range(repeat):
                for n in PROGRAMS:
                    for store in order[i % 3 :] + order[: i % 3]:
                        _, over = await decode(found[store], decoding, n, "ahead", STORES[store])
                        seen.setdefault((store, n), []).append(over)
                        delays.setdefault((store, n), []).extend(await delays_ms(found[store], dated, n, STORES[store]))
                    told = ", ".join(f"{store} {seen[store, n][-1]:.3f}" for store in STORES)
                    report.progress(f"journals: round {i + 1} of {repeat}, {n} programs, over device_s: {told}")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return seen, delays


def table(seen: Seen, delays: Delays) -> report.Report:
    """Make the table."""
    columns = ["journals", "programs", "over device_s", "over none", "95% interval", "median ms", "p99 ms"]
    made = report.Report("journals", "What a journal costs programs that decode", columns)
    made.x_label, made.y_label = "programs", "ms from the runtime to the client"
    for (store, n), values in sorted(seen.items(), key=lambda item: item[0][1]):
        ratios = [a / b for a, b in zip(values, seen["none", n], strict=True)]
        low, high = bootstrap_median(ratios)
        delay, late = (float(np.percentile(delays[store, n], q)) for q in (50, 99))
        interval = f"{low:.3f} to {high:.3f}" if store != "none" else ""
        made.rows.append((store, n, median(values), median(ratios), interval, delay, late))
        if store == "Redis":
            what = f"{n} program{'s' * (n > 1)} with Redis"
            made.goals.append(report.Goal(f"{what}, over none", median(ratios), GOAL_OVER_NONE, at_least=False))
            made.goals.append(report.Goal(f"{what}, delay of a token, ms", delay, GOAL_DELAY_MS, at_least=False))
    for store in STORES:
        values = [float(np.median(delays[store, n])) for n in PROGRAMS]
        made.series.append(report.Series(store, [str(n) for n in PROGRAMS], values))
    append_ms, sync_ms = alone_ms()
    made.notes.append(f"an append to an idle Redis alone takes {append_ms:.2f} ms, of which fdatasync {sync_ms:.2f} ms")
    return made


def main() -> int:
    """Run the command line."""
    args = report.parser("journals", __doc__).parse_args()
    install_uvloop()
    return report.emit([table(*asyncio.run(measure(args.repeat)))], args)


if __name__ == "__main__":
    sys.exit(main())
