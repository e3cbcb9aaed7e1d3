"""The page directory in Redis: memory of control and Redis, entries a second, and the time to write and read it anew.

Control's core has one engine whose prefix cache holds `--pages` rows, in branches of 1,024. A Redis on the same
machine, without a disk, follows it. Nothing else runs in the process, so *longest pause* is how long the event loop,
which serves runtimes and engines, was held up at most. The next control then reads everything.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import psutil
import redis

from bench.control import spec
from bench.harness import report
from bench.harness.intervals import median
from bench.harness.redis import redis_server
from bench.product.common import ControlSettings, SystemClock
from bench.product.control import PAGES, Core, EngineState, Follower, PageTable, chain, follower_of, root_of

BRANCH = 1024
CHANGES = 50_000
_MIB = 1 << 20
_SLEEP_S = 0.002


def filled(core: Core, pages: int) -> tuple[EngineState, float]:
    """Let an engine's prefix cache hold rows; returns the engine and the seconds that this took, without digests."""
    engine = core.on_engine("e", "i", replace(spec(), num_pages=2 * pages))
    spent = 0.0
    for first in range(0, pages, BRANCH):
        count = min(BRANCH, pages - first)
        digests = chain(root_of(str(first)), [array("I", [first + i] * 16) for i in range(count)])
        table = PageTable(0)
        table.rows, table.number = engine.pools[PAGES].take(count), engine.tables.take()
        began_s = time.perf_counter()
        engine.prefixes.insert(digests, table)
        spent += time.perf_counter() - began_s
        engine.pools[PAGES].release(table.rows)
        engine.tables.give(table.number)
        engine.tables.drain(1 << 30)
    return engine, spent


def resident() -> int:
    """Return the memory of this process, in bytes."""
    gc.collect()
    return int(psutil.Process(os.getpid()).memory_info().rss)


@asynccontextmanager
async def pauses() -> AsyncIterator[list[float]]:
    """Yield a list that gets the longest time, in seconds, for which the loop was held up in the block."""
    longest = [0.0]

    async def watch() -> None:
        while True:
            began_s = time.perf_counter()
            await asyncio.sleep(_SLEEP_S)
            longest[0] = max(longest[0], time.perf_counter() - began_s - _SLEEP_S)

    task = asyncio.create_task(watch())
    try:
        yield longest
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], bool]) -> float:
    """Wait; returns the seconds that this took."""
    began_s = time.perf_counter()
    async with asyncio.timeout(600):
        while not condition():  # noqa: ASYNC110 - the follower tells nobody
            await asyncio.sleep(0.005)
    return time.perf_counter() - began_s


async def once(pages: int) -> dict[str, float]:
    """Measure one round, in a Redis of its own."""
    found: dict[str, float] = {}
    with redis_server("--appendonly", "no") as url, redis.Redis.from_url(url) as client:
        settings = ControlSettings(directory_url=url)
        before = resident()
        core = Core(settings, SystemClock())
        engine, insert_s = filled(core, pages)
        found["control without a directory, bytes a page"] = (resident() - before) / pages
        found["control takes a row in, us"] = 1e6 * insert_s / pages
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)  # as control does
        before, redis_before = resident(), used(client)
        follower = follower_of(core, SystemClock())
        await follower.load()
        task = asyncio.create_task(follower.run())
        try:
            async with pauses() as longest:
                seconds = await until(lambda: follower.whole)
            found["write everything, s"] = seconds
            found["write everything, entries/s"] = follower.counters.written / seconds
            found["write everything, longest pause, ms"] = 1e3 * longest[0]
            found["control for the directory, bytes a page"] = max(0, resident() - before) / pages
            found["Redis, bytes a page"] = (used(client) - redis_before) / pages
            await changed(engine, follower, found)
            client.flushall()
            found["everything again after FLUSHALL, s"] = await until(lambda: not follower.whole) + await until(
                lambda: follower.whole
            )
            await follow_on(settings, pages, found)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await follower.close()
    return found


async def changed(engine: EngineState, follower: Follower, found: dict[str, float]) -> None:
    """Let rows go, and measure until Redis has that, and what the noting costs."""
    before = follower.counters.written
    async with pauses() as longest:
        began_s = time.perf_counter()
        gone, spent, most = 0, 0.0, min(CHANGES, len(engine.prefixes) // 4)
        while gone < most:
            first_s = time.perf_counter()
            gone += engine.prefixes.evict(BRANCH)
            spent += time.perf_counter() - first_s
            await asyncio.sleep(0)
        await until(lambda: follower.counters.written - before >= gone)
    found["control lets a row go, us"] = 1e6 * spent / gone
    found["changes, entries/s"] = gone / (time.perf_counter() - began_s)
    found["changes, longest pause, ms"] = 1e3 * longest[0]


async def follow_on(settings: ControlSettings, pages: int, found: dict[str, float]) -> None:
    """Let the next control read everything."""
    before = resident()
    after = follower_of(Core(settings, SystemClock()), SystemClock())
    began_s = time.perf_counter()
    await after.load()
    task = asyncio.create_task(after.run())
    await until(lambda: after.loaded)
    found["the next control reads everything, s"] = time.perf_counter() - began_s
    found["the next control, bytes a page for a minute"] = max(0, resident() - before) / pages
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await after.close()


def used(client: redis.Redis) -> int:
    """Return what Redis's entries take, in bytes."""
    return int(client.info("memory")["used_memory_dataset"])


def table(rounds: list[dict[str, float]], pages: int) -> report.Report:
    """Make the table, of medians."""
    made = report.Report("directory", f"The page directory in Redis, {pages:,} pages", ["what", "measured"])
    for name in rounds[0]:
        made.rows.append((name, median([found[name] for found in rounds])))
    redis_mib = median([found["Redis, bytes a page"] for found in rounds]) * pages / _MIB
    made.notes.append(f"{redis_mib:.0f} MiB of Redis in all; {len(rounds)} rounds, medians")
    return made


def main() -> int:
    """Run the command line."""
    parser = report.parser("directory", __doc__, repeat=3, goals=False, plots=False)
    parser.add_argument("--pages", type=report.positive, default=1_000_000, metavar="N", help="default %(default)s")
    args = parser.parse_args()
    rounds = []
    for i in range(args.repeat):
        rounds.append(asyncio.run(once(args.pages)))
        report.progress(f"directory: round {i + 1} of {args.repeat}")
    return report.emit([table(rounds, args.pages)], args)


if __name__ == "__main__":
    sys.exit(main())
