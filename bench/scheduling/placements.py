"""Placements on two and four real engines: prompt tokens that are computed, and how long a token takes (Autellix 6.4).

Chats of the shape of Autellix 6.1, scaled down, arrive at fleets of engine processes. Each call of a chat is a context
of its own, which begins with all that the chat has so far. Only control's placement differs. The engines are fake ones:
they take the time of a step and of a token that they are told, so that a fleet is one on a machine with few cores. With
`--model` they are torch engines with a checkpoint; what a step costs is measured on the first of them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import numpy as np

import tartlet
from bench.batching import DEMO_MODEL
from bench.harness import report
from bench.harness.intervals import median
from bench.harness.stack import running, running_stack, until_engines
from bench.orders import costs_of
from bench.product.common import install_uvloop
from bench.product.control import Costs, Order, Placement, Trace, generate, simulate, spaced

PLACEMENTS: Final = ("sticky", "least-used", "round-robin", "autellix", "locality")
FLEETS: Final = (2, 4)
SLOTS: Final = 4
COSTS: Final = Costs(fixed_s=0.02, decode_s=0.0005, prefill_s=0.0005, slots=SLOTS)
SCALE: Final = 16
"""Tokens of the paper's chats over those of ours; what counts as a short call is scaled too."""
SHORT_TOKENS: Final = 2048 // SCALE
PROGRAM = """
import json, sys
from inferlet import Context

async def main():
    number, calls = json.loads(sys.argv[1])
    history = [number // 200 % 200, number % 200]
    for prefill, decode in calls:
        history += [len(history) * 7 % 200] * prefill
        async with Context() as ctx:
            ctx.fill_tokens(history)
            async for _ in ctx.generate(max_tokens=decode, eos=False):
                pass
            history = list(ctx.tokens)
"""


def worker_flags(model: Path | None) -> list[str]:
    """Return the flags of an engine, a fake one without a model."""
    if model is not None:
        return [f"--max-batch-commands={SLOTS}"]
    return [f"--fake-step-s={COSTS.fixed_s}", f"--fake-token-s={COSTS.prefill_s}", f"--max-batch-commands={SLOTS}"]


async def measured(model: Path) -> Costs:
    """Start one engine with a model, and measure its costs."""
    flags = {"worker": [*worker_flags(model), "--host-kv-bytes=1048576"]}
    async with running(model=model, flags=flags) as address, tartlet.AsyncClient(address) as client:
        return await costs_of(client, 32)


@asynccontextmanager
async def fleet(placement: str, engines: int, model: Path | None) -> AsyncIterator[tartlet.AsyncClient]:
    """Start control with a placement, a runtime and so many engines; yields a client."""
    place = Path(tempfile.mkdtemp(prefix="tt-"))
    step, engine = worker_flags(model), "fake" if model is None else "torch"
    control = [f"--placement={placement}", f"--placement-short-tokens={SHORT_TOKENS}"]
    flags = {"control": control, "worker": step}
    more: list[asyncio.subprocess.Process] = []
    try:
        async with running_stack(engine=engine, model=model, flags=flags, directory=place) as stack:
            command = [sys.executable, "-m", "tartlet_cli", "serve", "--role", "worker", "--engine", engine, *step]
            command += [] if model is None else [f"--model={model}"]
            env = {**os.environ, "TARTLET_RUN_DIR": str(place)}
            with (place / "more.log").open("wb") as log:
                for _ in range(engines - 1):
                    process = await asyncio.create_subprocess_exec(*command, env=env, stdout=log, stderr=log)
                    more.append(process)
            async with tartlet.AsyncClient(stack.address) as client:
                await until_engines(client, engines)
                yield client
    finally:
        for process in more:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        shutil.rmtree(place, ignore_errors=True)


def chats(programs: int, engines: int, load: float, seed: int, costs: Costs, at_once: int) -> list[Trace]:
    """Return chats with 1/`SCALE` of the paper's tokens, which arrive at a load of the engines that run `at_once`."""
    rng = np.random.default_rng(seed)
    small = [
        Trace(t.name, 0.0, tuple(tuple((max(1, p // SCALE), max(1, d // SCALE)) for p, d in w) for w in t.waves))
        for t in generate("chat", programs * engines, rng)
    ]
    mean_s = float(np.mean([costs.served_s(trace) for trace in small]))
    return spaced(small, mean_s / load / at_once, rng)


async def token_s(client: tartlet.AsyncClient, number: int, trace: Trace, start: float) -> float:
    """Run a chat at its arrival; returns its response time over its decoded tokens."""
    await asyncio.sleep(max(0.0, start + trace.arrival_s - time.perf_counter()))
    begun = time.perf_counter()
    calls = [call for wave in trace.waves for call in wave]
    source = tartlet.Source(PROGRAM.encode(), filename="chat.py")
    spec = tartlet.LaunchSpec(source=source, args=[json.dumps([number, calls])], durable=False)
    async for event in await client.run(spec=spec):
        if isinstance(event, tartlet.Ended) and not event.success:
            raise RuntimeError(f"a program failed: {event.error}")
    return (time.perf_counter() - begun) / trace.decoded


async def once(
    placement: str, engines: int, traces: list[Trace], model: Path | None = None
) -> tuple[int, float, float]:
    """Run a load; returns the prompt tokens computed, and mean and 95th percentile of the seconds a token."""
    async with fleet(placement, engines, model) as client:
        start = time.perf_counter()
        seen = await asyncio.gather(*(token_s(client, n, trace, start) for n, trace in enumerate(traces)))
        computed = sum(engine["computed_tokens"] for engine in (await client.state()).control["engines"])
    steps = sum(decode - 1 for trace in traces for wave in trace.waves for _, decode in wave)
    return computed - steps, float(np.mean(seen)), float(np.percentile(seen, 95))


async def measure(args: argparse.Namespace) -> report.Report:
    """Make one table: a row for each fleet and placement."""
    columns = [
        "engines", "placement", "prompt tokens computed", "over all new ones", "simulated", "mean ms a token", "p95 ms"
    ]  # fmt: skip
    kind = "fake" if args.model is None else "torch"
    title = f"Placements, {kind} engines, {args.programs} chats an engine, load {args.load}, {SLOTS} calls a batch"
    result = report.Report("placements", title, columns, y_label="mean ms a token")
    costs = COSTS if args.model is None else await measured(args.model)
    report.progress(f"placements: {costs}")
    means: dict[int, list[float]] = {}
    for engines in FLEETS:
        seen: dict[str, list[tuple[int, float, float]]] = {name: [] for name in PLACEMENTS}
        new: list[int] = []
        simulated: dict[str, list[float]] = {name: [] for name in PLACEMENTS}
        for i in range(args.repeat):
            at_once = engines if args.model is None else min(engines, os.cpu_count() or 1)
            traces = chats(args.programs, engines, args.load, i, costs, at_once)
            new.append(sum(prefill for trace in traces for wave in trace.waves for prefill, _ in wave))
            for name in PLACEMENTS[i % len(PLACEMENTS) :] + PLACEMENTS[: i % len(PLACEMENTS)]:
                placement = Placement(name, SHORT_TOKENS)
                expected = simulate(traces, Order(), costs, engines, placement, histories=True).prefilled
                simulated[name].append(expected / new[-1])
                seen[name].append(await once(name, engines, traces, args.model))
                report.progress(f"placements: {engines} engines, {name}: {seen[name][-1]}")
        for name in PLACEMENTS:
            tokens, mean_s, p95_s = (median(list(values)) for values in zip(*seen[name], strict=True))
            ratios = tokens / median(new), median(simulated[name])
            result.rows.append((engines, name, int(tokens), *ratios, 1e3 * mean_s, 1e3 * p95_s))
            means.setdefault(engines, []).append(1e3 * mean_s)
    result.series = [report.Series(f"{n} engines", list(PLACEMENTS), values) for n, values in means.items()]
    return result


def main() -> int:
    """Run the command line."""
    parser = report.parser("placements", __doc__, repeat=1)
    parser.add_argument("--programs", type=report.positive, default=12, metavar="N", help="an engine (%(default)s)")
    parser.add_argument("--load", type=float, default=0.8, metavar="X", help="work over capacity (%(default)s)")
    told = "engines with this checkpoint instead of fake ones (without a value: the demo model)"
    parser.add_argument("--model", type=Path, nargs="?", const=DEMO_MODEL, metavar="DIR", help=told)
    args = parser.parse_args()
    install_uvloop()
    return report.emit([asyncio.run(measure(args))], args)


if __name__ == "__main__":
    sys.exit(main())
