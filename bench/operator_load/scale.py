"""The operator with a thousand and more Inferlets of 100 distinct sources, against a real API server with its etcd.

For each number of objects: they and a pool are made while no operator runs; it is started, and the time until the last
of them is seen Ready is taken, with its processor time and what it wrote; then a time in which nothing happens; then
some more are made one by one; then it is started again and has nothing to write. Control, a runtime and a fake engine
are real processes: validation is what a runtime does.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import ClientSession

from bench.harness import report
from bench.harness.intervals import median
from bench.harness.stack import running_stack
from bench.operator_load.objects import (
    NAMESPACE,
    SOURCES,
    UNWATCHED,
    Watch,
    client,
    create,
    create_all,
    create_neighbours,
    create_pool,
    source,
    status_of,
    versions,
    write_statuses,
    write_twice,
)
from bench.operator_load.place import (
    Memory,
    api_server,
    compile_once,
    cpu_s,
    holding_a_stream,
    sample,
    scheduled_s,
    writes,
)
from bench.product.common import OperatorSettings, install_uvloop
from bench.product.operator import ApiServer, OperatorProcess

OBJECTS = (1_000, 5_000, 10_000)
READY_S = {1_000: 8.0, 10_000: 40.0}
FLAGS = ("--lease-duration-s=15", "--heartbeat-s=60", "--log-level=warning")  # as they are by default, and quiet
_PAUSE_S = 0.1
_SETTLED_S = 120.0
_BARE = 500  # statuses that a bare client writes
_A_MINUTE_S = 60.0
_REST_S = 20.0  # until the first sweep is over: what is measured then is rest


@dataclass(frozen=True, slots=True)
class Measured:
    """What one number of objects took; seconds, MiB, milliseconds."""

    ready_s: float  # validation not counted
    validation_s: float
    floor_s: float  # for as many statuses by a bare client
    writes: float  # an object
    cpu_s: float
    peak: float
    rss: float
    pss: float
    steady: float  # share of a core
    stream: float  # the same of a process that holds a gRPC stream
    restart_s: float
    restart_writes: float
    restart_cpu_s: float
    more_ms: float
    more_p99_ms: float
    bare_ms: float


ROWS: Sequence[tuple[str, str, Callable[[Measured], float]]] = (
    ("all Ready, validation not counted, s", "1,000: 8; 10,000: 40", lambda m: m.ready_s),
    ("  validation, s", "", lambda m: m.validation_s),
    ("  as many statuses written by a bare client, s", "", lambda m: m.floor_s),
    ("writes an object", "1", lambda m: m.writes),
    ("operator's CPU until all are Ready, s", "10,000: 20", lambda m: m.cpu_s),
    ("its memory: peak RSS, MiB", "10,000: 200", lambda m: m.peak),
    ("  RSS when settled", "", lambda m: m.rss),
    ("  PSS when settled", "", lambda m: m.pss),
    ("CPU at rest, thousandths of a core", "10,000: 1", lambda m: m.steady * 1e3),
    ("  a process's that only holds a gRPC stream", "", lambda m: m.stream * 1e3),
    ("restart until all were looked at, s", "10,000: 15", lambda m: m.restart_s),
    ("  writes", "0", lambda m: m.restart_writes),
    ("  CPU, s", "", lambda m: m.restart_cpu_s),
    ("one more until it is Ready, median ms", "50", lambda m: m.more_ms),
    ("  p99 ms", "", lambda m: m.more_p99_ms),
    ("  its two writes and their events, by a bare client, median ms", "", lambda m: m.bare_ms),
)


async def _settled(operator: OperatorProcess, objects: int) -> str:
    """Wait until the operator knows all of them as ready and nothing waits; its page of metrics."""
    async with asyncio.timeout(_SETTLED_S):
        while True:
            try:
                page = await asyncio.to_thread(operator.get, "metrics")
            except OSError:  # it isn't up yet
                page = ""
            ready = sample(page, "tartlet_operator_objects", kind="Inferlet", state="ready")
            if ready == objects and not sample(page, "tartlet_operator_queue"):
                return page
            await asyncio.sleep(0.1)


def _pid(operator: OperatorProcess) -> int:
    if operator.child is None:
        raise RuntimeError("it was not started")
    return operator.child.pid


async def measure(server: ApiServer, objects: int, steady_s: float, more: int, rest_s: float = _REST_S) -> Measured:
    """One number of objects, from none; `rest_s`: how long nothing is measured before it is watched idle."""
    what = f"operator: {objects:,} objects"
    texts = [source(n) for n in range(SOURCES)]
    names = [f"i{n:05d}" for n in range(objects)]
    bare = [f"bare{n:05d}" for n in range(_BARE)]
    later = [f"more{n:05d}" for n in range(more)]
    server.create_namespace(NAMESPACE)
    server.create_namespace(UNWATCHED)
    async with running_stack(engine="fake") as stack, client(server) as session:
        await create_pool(session)
        await create_neighbours(session)
        took_s = await create_all(session, names, texts)
        report.progress(f"{what}: made at {objects / took_s:.0f} a second")
        operator = OperatorProcess(server, NAMESPACE, stack.directory, FLAGS)
        try:
            async with Watch(session) as watch:
                before = writes(server)
                started = time.perf_counter()
                operator.start()
                ready_s = await watch.until(names, watch.ready_s, what) - started
                used_s = cpu_s(_pid(operator))
                page = await _settled(operator, objects)
                wrote = writes(server) - before
                waited_s = sample(page, "tartlet_operator_validation_duration_seconds_sum")
                validation_s = waited_s / OperatorSettings().concurrency  # its workers validate at once
                memory = Memory.of(_pid(operator))
                report.progress(f"{what}: Ready in {ready_s:.1f} s, writes: {dict(wrote)}; idle for {steady_s:.0f} s")
                with holding_a_stream(stack.control_address) as streaming:
                    await asyncio.sleep(rest_s)
                    steady, stream = await asyncio.gather(
                        *(_share(pid, steady_s) for pid in (_pid(operator), streaming))
                    )
                status = await status_of(session, names[0])
                floor_s = await write_statuses(session, bare, texts[0], status) / len(bare) * objects
                report.progress(f"{what}: {more} more, one by one")
                more_s, bare_s = await _more(session, watch, later, texts, status)
                await _settled(operator, objects + more)
            operator.stop()
            report.progress(f"{what}: restart")
            seen, before = await versions(session), writes(server)
            started = time.perf_counter()
            operator.start()
            await _settled(operator, objects + more)
            restart_s, restart_cpu_s = time.perf_counter() - started, cpu_s(_pid(operator))
            await asyncio.sleep(1.0)
            again = sum((writes(server) - before).values())
            if seen != await versions(session):
                raise RuntimeError("a restart changed objects")
        finally:
            if operator.child is not None:
                operator.stop()
    return Measured(
        ready_s=ready_s - validation_s,
        validation_s=validation_s,
        floor_s=floor_s,
        writes=sum(count for what, count in wrote.items() if "inferlets" in what) / objects,
        cpu_s=used_s,
        peak=memory.peak,
        rss=memory.rss,
        pss=memory.pss,
        steady=steady,
        stream=stream,
        restart_s=restart_s,
        restart_writes=again,
        restart_cpu_s=restart_cpu_s,
        more_ms=float(np.median(more_s)) * 1e3,
        more_p99_ms=float(np.percentile(more_s, 99)) * 1e3,
        bare_ms=float(np.median(bare_s)) * 1e3,
    )


async def _share(pid: int, over_s: float) -> float:
    """Measure how much of a core a process takes."""
    before = scheduled_s(pid)
    await asyncio.sleep(over_s)
    return (scheduled_s(pid) - before) / over_s


async def _more(
    session: ClientSession, watch: Watch, names: Sequence[str], texts: Sequence[str], status: Mapping[str, Any]
) -> tuple[list[float], list[float]]:
    """Make some objects one by one, of sources validated before.

    Returns:
        For each, from the request that makes it to the event that shows it Ready, s; and what a bare client takes.
    """
    more_s, bare_s = [], []
    async with Watch(session, UNWATCHED) as bare_watch:
        for n, name in enumerate(names):
            await asyncio.sleep(_PAUSE_S)
            started = time.perf_counter()
            await create(session, name, texts[n % SOURCES])
            more_s.append(await watch.until([name], watch.ready_s) - started)
            await asyncio.sleep(_PAUSE_S)
            bare_s.append(await write_twice(session, bare_watch, name, texts[n % SOURCES], status))
    return more_s, bare_s


def table(measured: dict[int, Measured]) -> report.Report:
    """Make the table: a column a number of objects, a row for each thing measured, its goal beside."""
    result = report.Report(
        "operator",
        f"The operator with Inferlets of {SOURCES} distinct sources, from none to Ready and idle",
        ["", *(f"{n:,}" for n in measured), "goal, at most"],
    )
    for name, goal, value in ROWS:
        result.rows.append((name, *(value(m) for m in measured.values()), goal))
    for n, m in measured.items():
        if n in READY_S:
            result.goals.append(
                report.Goal(f"{n:,} Ready, validation not counted, s", m.ready_s, READY_S[n], at_least=False)
            )
    most = max(measured)
    last = measured[most]
    result.goals += [
        report.Goal(name, value, bound, at_least=False)
        for name, value, bound in (
            ("writes an object", max(m.writes for m in measured.values()), 1.0),
            (f"CPU until {most:,} are Ready, s", last.cpu_s, 20.0),
            (f"peak RSS with {most:,}, MiB", last.peak, 200.0),
            (f"CPU at rest with {most:,}, share of a core", last.steady, 0.001),
            (f"restart with {most:,}, s", last.restart_s, 15.0),
            ("writes of a restart", max(m.restart_writes for m in measured.values()), 0.0),
            (f"one more beside {most:,}, median ms", last.more_ms, 50.0),
        )
    ]
    result.notes.append(
        "validation: how long the operator's workers waited for the runtime's verdict, over their number"
    )
    lines: Sequence[tuple[str, Callable[[Measured], float]]] = (
        ("all Ready, validation not counted", lambda m: m.ready_s),
        ("operator's CPU until then", lambda m: m.cpu_s),
        ("restart without writes", lambda m: m.restart_s),
    )
    result.series = [
        report.Series(label, list(measured), [value(m) for m in measured.values()]) for label, value in lines
    ]
    result.x_label, result.y_label = "Inferlets", "s"
    return result


def _median(rounds: Sequence[Measured]) -> Measured:
    return Measured(*(median(values) for values in zip(*map(astuple, rounds), strict=True)))


def _counts(text: str) -> list[int]:
    return sorted(report.positive(part) for part in text.split(","))


def main() -> int:
    """Run the command line."""
    parser = report.parser("operator", __doc__, repeat=1)  # a quarter of an hour each
    parser.epilog = "Without --json the numbers go to operator.json, beside the plots."
    parser.add_argument(
        "--objects",
        type=_counts,
        default=list(OBJECTS),
        metavar="N,...",
        help=f"how many (default {','.join(map(str, OBJECTS))})",
    )
    parser.add_argument(
        "--steady",
        type=float,
        default=600.0,
        metavar="S",
        help="seconds it is watched idle with the most, at most a minute with fewer (default 600)",
    )
    parser.add_argument(
        "--more", type=report.positive, default=50, metavar="N", help="made one by one (default %(default)s)"
    )
    args: argparse.Namespace = parser.parse_args()
    args.plot.mkdir(parents=True, exist_ok=True)
    args.json = args.json or args.plot / "operator.json"
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # ends everything that was started
    install_uvloop()
    rounds: dict[int, list[Measured]] = {n: [] for n in args.objects}
    try:
        with tempfile.TemporaryDirectory(prefix="tt-pyc-") as directory:
            compile_once(Path(directory))
            for _ in range(args.repeat):
                for n, seen in rounds.items():
                    report.progress(f"operator: {n:,} objects: an API server starts")
                    with api_server() as server:
                        steady_s = args.steady if n == max(rounds) else min(args.steady, _A_MINUTE_S)
                        seen.append(asyncio.run(measure(server, n, steady_s, args.more)))
    except KeyboardInterrupt:
        return 130
    return report.emit([table({n: _median(seen) for n, seen in rounds.items()})], args)


if __name__ == "__main__":
    sys.exit(main())
