"""Orders of programs on a real engine, beside the simulation of the same load (Autellix 6).

Programs of the shapes of Autellix 6.1, scaled down, arrive at an engine whose batch takes few of them. Only control's
order differs. The simulation gets the same programs, and the costs of a step that were measured on this engine.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

import tartlet
from bench.batching import DEMO_MODEL
from bench.harness import report
from bench.harness.intervals import median
from bench.harness.stack import running
from bench.product.common import install_uvloop
from bench.product.control import SIMULATED, Costs, Order, Trace, generate, known, simulate, spaced, write

ORDERS = ("round-robin", "fcfs", "mlfq", "plas", "atlas", "gittins")
QUANTA_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
STARVED_AT = 64.0
APART = 1.2
"""Orders whose means differ by this factor, simulated or on the engine, must come in the same order in both."""
SLOTS = 4
HOST_BYTES = 1 << 24
"""Host memory of the worker, so that it measures what a page takes there."""
PROGRAM = """
import asyncio, json, sys
from inferlet import Context

async def call(prefill, decode):
    async with Context() as ctx:
        ctx.fill_tokens([5] * prefill)
        async for _ in ctx.generate(max_tokens=decode, eos=False):
            pass

async def main():
    for wave in json.loads(sys.argv[1]):
        await asyncio.gather(*(call(*each) for each in wave))
"""


def scaled(trace: Trace, by: int) -> Trace:
    """Return a program with 1/`by` of its tokens and half of its waves, at least one of each."""
    waves = trace.waves[: max(1, len(trace.waves) // 2)]
    small = tuple(tuple((max(1, p // by), max(1, d // by)) for p, d in wave) for wave in waves)
    return Trace(trace.name, trace.arrival_s, small)


def spec(trace: Trace) -> tartlet.LaunchSpec:
    """Return the launch of a program; its name is that of its shape."""
    source = tartlet.Source(PROGRAM.encode(), filename=f"{trace.name}.py")
    return tartlet.LaunchSpec(source=source, args=[json.dumps(trace.waves)], durable=False)


async def response_s(client: tartlet.AsyncClient, trace: Trace, start: float) -> float:
    """Launch a program at its arrival; returns the seconds from then to its end."""
    await asyncio.sleep(max(0.0, start + trace.arrival_s - time.perf_counter()))
    begun = time.perf_counter()
    async for event in await client.run(spec=spec(trace)):
        if isinstance(event, tartlet.Ended) and not event.success:
            raise RuntimeError(f"a program failed: {event.error}")
    return time.perf_counter() - begun


async def responses_s(client: tartlet.AsyncClient, traces: list[Trace]) -> list[float]:
    """Run a load; returns the response time of each program."""
    start = time.perf_counter()
    return await asyncio.gather(*(response_s(client, trace, start) for trace in traces))


async def costs_of(client: tartlet.AsyncClient, tokens: int = 128) -> Costs:
    """Measure the engine's costs: a prompt, and steps of one call and of `SLOTS` calls.

    The engine itself tells how many tokens its memory holds, and what a token takes to host memory. A token of a prompt
    that is computed again costs what it cost first.
    """

    async def step_s(calls: int) -> float:
        one = Trace("warm", 0.0, (((1, tokens),) * calls,))
        return min([(await responses_s(client, [one]))[0] for _ in range(3)]) / tokens

    single, full = await step_s(1), await step_s(SLOTS)
    decode_s = max(0.0, full - single) / (SLOTS - 1)
    prompt = Trace("warm", 0.0, (((tokens * 4, 1),),))
    prompt_s = min([(await responses_s(client, [prompt]))[0] for _ in range(3)])
    [engine] = (await client.state()).control["engines"]
    memory = engine["pools"]["KV pages"]["total"] * engine["page_size"]
    swap_s = 1e-9 * engine["host_pages"]["page_ns"] / engine["page_size"]
    return Costs(single - decode_s, decode_s, prompt_s / (tokens * 4), SLOTS, 1, memory, swap_s)


def flags_of(name: str) -> dict[str, list[str]]:
    """Return the flags of control and of the worker for an order."""
    quanta = ",".join(map(str, QUANTA_S))
    control = [f"--order={name}", f"--order-quanta-s={quanta}", f"--order-starved-at={STARVED_AT}"]
    return {"control": control, "worker": [f"--max-batch-commands={SLOTS}", f"--host-kv-bytes={HOST_BYTES}"]}


async def only_costs(model: Path) -> Costs:
    """Start an engine, and measure its costs."""
    async with running(model=model, flags=flags_of("fcfs")) as address, tartlet.AsyncClient(address) as client:
        return await costs_of(client)


async def measure(model: Path, programs: int, scale: int, load: float, repeat: int) -> report.Report:
    """Make one table: a row an order."""
    seen: dict[str, list[float]] = {name: [] for name in ORDERS}
    simulated: dict[str, list[float]] = {name: [] for name in ORDERS}
    tail: dict[str, list[float]] = {name: [] for name in ORDERS}
    costs: Costs | None = None
    for i in range(repeat):
        rng = np.random.default_rng(i)
        shapes = [scaled(trace, scale) for trace in generate("mixed", 2 * programs, rng)]
        past, shapes = shapes[:programs], shapes[programs:]
        for name in ORDERS[i % len(ORDERS) :] + ORDERS[: i % len(ORDERS)]:
            async with running(model=model, flags=flags_of(name)) as address, tartlet.AsyncClient(address) as client:
                if costs is None:
                    costs = await costs_of(client)
                    report.progress(f"orders: {costs}")
                mean_s = float(np.mean([costs.served_s(trace) for trace in shapes]))
                traces = spaced(shapes, mean_s / load, np.random.default_rng(100 + i))
                await responses_s(client, [replace(t, arrival_s=0.0) for t in past])
                response = await responses_s(client, traces)
            order = Order(name, QUANTA_S, STARVED_AT)
            known(past, order, costs)
            seen[name].append(float(np.mean(response)))
            tail[name].append(float(np.percentile(response, 99)))
            simulated[name].append(float(np.mean(simulate(traces, order, costs).response_s)))
            report.progress(f"orders: round {i + 1} of {repeat}, {name}: {seen[name][-1]:.2f} s")
    return table(programs, load, seen, tail, simulated)


def apart(means: dict[str, float]) -> list[tuple[str, str]]:
    """Return the pairs of orders whose means are far apart, the better one first.

    Example:
        >>> apart({"fcfs": 1.0, "plas": 0.7, "mlfq": 1.1})
        [('plas', 'fcfs'), ('plas', 'mlfq')]
    """
    return [(a, b) for a in means for b in means if means[a] * APART < means[b]]


def table(
    programs: int,
    load: float,
    seen: dict[str, list[float]],
    tail: dict[str, list[float]],
    simulated: dict[str, list[float]],
) -> report.Report:
    """Make the table of all rounds' medians, and count the pairs of orders that come the other way round."""
    base, simulated_base = seen["round-robin"], simulated["round-robin"]
    ratio = {n: median([a / b for a, b in zip(seen[n], base, strict=True)]) for n in ORDERS}
    expected = {n: median([a / b for a, b in zip(simulated[n], simulated_base, strict=True)]) for n in ORDERS}
    columns = ["order", "mean s", "p99 s", "mean over round-robin's", "simulated mean", "simulated over round-robin's"]
    result = report.Report("orders", f"Orders, {programs} programs, load {load}, {SLOTS} calls a batch", columns)
    result.rows = [(n, median(seen[n]), median(tail[n]), ratio[n], median(simulated[n]), expected[n]) for n in ORDERS]
    turned: list[str] = []
    for where, means, elsewhere in (("in the simulation", expected, ratio), ("on the engine", ratio, expected)):
        pairs = apart(means)
        swapped = [f"{a} and {b}" for a, b in pairs if elsewhere[a] >= elsewhere[b]]
        result.notes.append(
            f"{len(pairs)} pairs are over 20% apart {where}; turned elsewhere: {', '.join(swapped) or 'none'}"
        )
        turned += swapped
    result.goals = [report.Goal("pairs of orders the other way round", float(len(turned)), 0.0, at_least=False)]
    result.series = [
        report.Series("engine", list(ORDERS), list(ratio.values())),
        report.Series(SIMULATED, list(ORDERS), list(expected.values())),
    ]
    result.y_label = "mean response over round-robin's"
    return result


def main() -> int:
    """Run the command line."""
    parser = report.parser("orders", __doc__)
    parser.add_argument(
        "--model", type=Path, default=DEMO_MODEL, metavar="DIR", help="checkpoint (default: the demo model)"
    )
    parser.add_argument("--programs", type=report.positive, default=60, metavar="N", help="in a load (%(default)s)")
    parser.add_argument("--scale", type=report.positive, default=16, metavar="N", help="tokens over N (%(default)s)")
    parser.add_argument("--load", type=float, default=1.1, metavar="X", help="work over capacity (%(default)s)")
    told = "measure only the engine's costs, and write them here for `tartlet simulate --costs FILE`"
    parser.add_argument("--costs", type=Path, metavar="FILE", help=told)
    args = parser.parse_args()
    install_uvloop()
    if args.costs:
        write(args.costs, asyncio.run(only_costs(args.model)))
        return 0
    made = measure(args.model, args.programs, args.scale, args.load, args.repeat)
    return report.emit([asyncio.run(made)], args)


if __name__ == "__main__":
    sys.exit(main())
