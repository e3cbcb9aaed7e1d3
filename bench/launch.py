"""From a launch request to the program's first message at the client (Pie 7.4, Figure 9): 1, 128 and 896 at once.

The programs send one message and end. All launches of a round are one request on one stream; each program's time is
taken when its message has arrived.

Cold means: the first burst of 128 after a start of the stack; the module is compiled in the cache directory, and the
runtime has made no sandboxes ahead. Warm means: bursts of this size have run, and since the last one the runtime was
left alone until it had made the spare sandboxes that it keeps for the next burst (`WasmHost.tend`). The growth of
the runtime's memory, spares included, is how much its resident set grew from before any launch to the rest at the end.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import numpy as np
import psutil

import tartlet
from bench.harness import report
from bench.harness.intervals import median
from bench.harness.stack import running, running_stack
from bench.product.common import install_uvloop

COUNTS = (1, 128, 896)
GOALS_MS = {"core Wasm": (2.0, 20.0, 80.0), "Python": (8.0, 150.0, 800.0)}
PYTHON = 'from inferlet import send\n\n\nasync def main():\n    send("hello")\n'
CORE = Path(__file__).resolve().parents[1] / "inferlets" / "sdk" / "c" / "examples" / "send_and_exit.wasm"
ROUNDS_OF_ONE = 20
COLD = 128
"""Programs of the first burst after a start."""
QUIET_S = 0.25
SETTLE_S = 60.0


async def _round_ms(client: tartlet.AsyncClient, source: tartlet.Source, n: int) -> np.ndarray:
    """Launch `n` programs; milliseconds from the request to each one's first message, [n]."""
    specs = [tartlet.LaunchSpec(source=source)] * n
    arrived: dict[int, float] = {}
    ended = 0
    start = time.perf_counter()
    async for index, event in client.run_many(specs):
        if isinstance(event, tartlet.Message):
            arrived.setdefault(index, (time.perf_counter() - start) * 1e3)
        elif isinstance(event, tartlet.Ended):
            ended += 1
            if not event.success:
                raise RuntimeError(f"program {index} failed: {event.error}")
        elif isinstance(event, tartlet.TartletError):
            raise event
    if len(arrived) != n or ended != n:
        raise RuntimeError(f"{len(arrived)} messages and {ended} ends of {n} programs")
    return np.array(sorted(arrived.values()))


async def _settle(client: tartlet.AsyncClient) -> None:
    """Wait until the runtime has made all the spare sandboxes that it wants."""
    async with asyncio.timeout(SETTLE_S):
        before, spares = -1, (await client.state()).spares
        while spares != before:
            await asyncio.sleep(QUIET_S)
            before, spares = spares, (await client.state()).spares


async def _cold_ms(kind: str, source: tartlet.Source) -> np.ndarray:
    """Start a stack and launch its first burst; milliseconds of each program, [COLD]."""
    report.progress(f"launch: cold, {kind}")
    async with running(engine="fake") as address, tartlet.AsyncClient(address) as client:
        return await _round_ms(client, source, COLD)


async def measure(repeat: int) -> report.Report:
    """Make one table: a row for each kind of program and number of launches."""
    result = report.Report(
        "launch", "Launch to first message", ["programs", "at once", "median ms", "p99 ms", "goal ms"]
    )
    sources = {"core Wasm": tartlet.Source.from_file(CORE), "Python": tartlet.Source.python(PYTHON)}
    seen: dict[tuple[str, int], list[np.ndarray]] = {(kind, n): [] for kind in sources for n in COUNTS}
    cold = {kind: [await _cold_ms(kind, source) for _ in range(repeat)] for kind, source in sources.items()}
    async with running_stack(engine="fake") as stack, tartlet.AsyncClient(stack.address) as client:
        runtime = psutil.Process(stack.pid("runtime"))
        without_mb = runtime.memory_info().rss / 1e6
        for kind, source in sources.items():  # compile, map and warm the slots
            report.progress(f"launch: warming {kind}")
            for n in (1, *COUNTS):
                await _settle(client)
                await _round_ms(client, source, n)
        for i in range(repeat):
            report.progress(f"launch: {i + 1} of {repeat}")
            for (kind, n), rounds in seen.items():
                await _settle(client)
                rounds.extend(
                    [await _round_ms(client, sources[kind], n) for _ in range(ROUNDS_OF_ONE if n == 1 else 1)]
                )
        await _settle(client)
        state, with_mb = await client.state(), runtime.memory_info().rss / 1e6
    grown = f"growth of the runtime's memory, spares included: from {without_mb:.0f} MB to {with_mb:.0f} MB"
    result.notes.append(f"at rest after all bursts: {state.spares} spare sandboxes; {grown}")
    for kind in sources:
        first = cold[kind]
        p99 = float(np.percentile(np.concatenate(first), 99))
        result.rows.append((f"{kind}, cold", COLD, median([float(np.median(r)) for r in first]), p99, ""))
        medians = []
        for n, goal in zip(COUNTS, GOALS_MS[kind], strict=True):
            rounds = seen[kind, n]
            middle = median([float(np.median(r)) for r in rounds])
            medians.append(middle)
            result.rows.append((kind, n, middle, float(np.percentile(np.concatenate(rounds), 99)), goal))
            result.goals.append(report.Goal(f"{kind}, {n} at once, ms", middle, goal, at_least=False))
        result.series.append(report.Series(kind, list(COUNTS), medians))
    result.x_label, result.y_label, result.log_x = "launched at once", "median ms to first message", True
    return result


def main() -> int:
    """Run the command line."""
    args = report.parser("launch", __doc__).parse_args()
    install_uvloop()
    return report.emit([asyncio.run(measure(args.repeat))], args)


if __name__ == "__main__":
    sys.exit(main())
