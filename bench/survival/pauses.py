"""How long programs stand still when a process is killed: the longest time between two tokens of each program.

The programs begin on a fake engine whose steps take 20 ms. Then one more engine of the same kind starts and stands by.
Once all programs decode, SIGKILL hits the process; the worker that is killed is the first engine's. The
variant "nothing" kills none: its gaps are those of a busy machine. A runtime or control that was killed is started
again at once on the same machine. With "standby" a second control waits for the lease in a Redis, and takes it when the
killed one has not renewed it for `lease_s`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import numpy as np

import tartlet
from bench.harness import report
from bench.harness.redis import redis_server
from bench.harness.stack import running_stack, until_engines
from bench.overhead import HERE
from bench.product.common import install_uvloop
from tartlet.local import LocalStack

STANDBY = "control, standby"
VICTIMS = ("nothing", "worker", "runtime", "control", STANDBY)
BY_NAME = {victim.rpartition(" ")[2]: victim for victim in VICTIMS}
"""The variants, by what `--kill` calls them."""
PROGRAMS = (1, 1000)
TOKENS = 24
STEP_S = 0.02
SETTLE_S = 0.2
STANDS_BY_S = 3.0
"""How long a second control has for its start, before the first one may be killed."""
GOALS_S = {"worker": 2.0, "control": 3.0, STANDBY: 3.0}
"""The longest pause of one program at the most. A runtime has no goal: a program waits for its start and its re-run."""
LEAST_S = 0.5
"""A program whose engine died stands still for longer: control waits for the engine's return first."""
SHARES = (50, 90, 99, 100)
WORKER = ("--engine", "fake", "--fake-step-s", str(STEP_S))


@asynccontextmanager
async def one_engine(runtime: Sequence[str], *, standby: bool = False) -> AsyncIterator[tuple[LocalStack, Path]]:
    """Start a stack in a directory, and yield both.

    Args:
        runtime: flags of the runtime.
        standby: whether a second control waits for the first one's lease.
    """
    async with AsyncExitStack() as stacks:
        place = Path(tempfile.mkdtemp(prefix="tt-"))
        stacks.callback(shutil.rmtree, place, ignore_errors=True)
        lease = ["--lease-url", stacks.enter_context(redis_server())] if standby else []
        flags = {"worker": WORKER[2:], "runtime": runtime, "control": lease}
        stack = await stacks.enter_async_context(running_stack(engine="fake", flags=flags, directory=place))
        if standby:
            await stacks.enter_async_context(another(place, "control", *lease))
            await asyncio.sleep(STANDS_BY_S)
        yield stack, place


@asynccontextmanager
async def stack_with_spare(runtime: Sequence[str]) -> AsyncIterator[LocalStack]:
    """Start a stack with flags of the runtime, and a second worker that programs can go on at."""
    async with one_engine(runtime) as (stack, place), another(place, "worker", *WORKER):
        yield stack


@asynccontextmanager
async def another(place: Path, role: str, *flags: str) -> AsyncIterator[None]:
    """Start one more process of a role beside the stack in a directory."""
    env = {**os.environ, "TARTLET_RUN_DIR": str(place)}
    command = [sys.executable, "-m", "tartlet_cli", "serve", "--role", role, "--log-level", "warning", *flags]
    with (place / "logs" / f"another-{role}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, env=env, stdout=log, stderr=log)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def gaps(stack: LocalStack, place: Path, victim: str, programs: int) -> list[float]:
    """Let programs decode, kill a process of the stack in `place`, and return the longest gap of each program, s."""
    source = tartlet.Source.from_file(HERE / "guests" / "gaps.py")
    async with AsyncExitStack() as spare, tartlet.AsyncClient(stack.address) as client:
        await until_engines(client, 1)
        specs = [tartlet.LaunchSpec(source=source, args=[str(TOKENS), str(i)]) for i in range(programs)]
        answers = await client.launch_many(specs)
        refused = [answer for answer in answers if not isinstance(answer, tartlet.Accepted)]
        if refused:
            raise RuntimeError(f"{len(refused)} programs were refused: {refused[0]}")
        launched = [answer.program_id for answer in answers if isinstance(answer, tartlet.Accepted)]
        runs = [await client.attach(program_id, retry_s=60.0) for program_id in launched]
        begun, results = asyncio.Event(), []
        waiting = set(launched)

        async def follow(run: tartlet.Run) -> None:
            async for event in run:
                if isinstance(event, tartlet.Message):
                    waiting.discard(run.program_id)
                    if not waiting:
                        begun.set()
            assert run.ended is not None
            if run.ended.error is not None:
                raise run.ended.error
            results.append(float(run.ended.result or "0"))

        async with asyncio.TaskGroup() as tasks:
            for run in runs:
                tasks.create_task(follow(run))
            await begun.wait()
            await spare.enter_async_context(another(place, "worker", *WORKER))
            await until_engines(client, 2)
            await client.send_many([(program_id, b"go") for program_id in launched])
            await asyncio.sleep(SETTLE_S)
            if victim != "nothing":
                os.kill(stack.pid(victim.partition(",")[0]), signal.SIGKILL)
        return results


async def measure(args: argparse.Namespace) -> dict[tuple[str, int], list[float]]:
    """Measure all variants; each has a stack of its own."""
    seen: dict[tuple[str, int], list[float]] = {}
    for programs in args.programs:
        for victim in args.kill:
            flags = ("--capacity", str(programs + 8))
            async with one_engine(flags, standby=victim == STANDBY) as (stack, place):
                begin_s = time.monotonic()
                found = await gaps(stack, place, victim, programs)
            if victim == "worker" and max(found) < LEAST_S:
                raise RuntimeError(
                    f"no program was on the engine that was killed: the longest pause was {max(found):.2f} s"
                )
            seen[victim, programs] = found
            told = f"median {np.median(found):.2f} s, longest {max(found):.2f} s"
            report.progress(
                f"pauses: {victim} killed, {programs} programs: {told} ({time.monotonic() - begin_s:.0f} s)"
            )
    return seen


def tables(seen: dict[tuple[str, int], list[float]]) -> list[report.Report]:
    """Make the table, with bars of the median programs, and for each number of programs a plot of all of them."""
    columns = ["killed", "programs", *(f"{share}% s" if share < max(SHARES) else "longest s" for share in SHARES)]
    made = [report.Report("pauses", "Longest pause of each program", columns)]
    made[0].x_label, made[0].y_label = "killed", "longest pause of the median program, s"
    for (victim, programs), values in seen.items():
        made[0].rows.append((victim, programs, *(float(np.percentile(values, share)) for share in SHARES)))
        if programs == 1 and victim in GOALS_S:
            name = f"{victim} killed, one program, longest pause, s"
            made[0].goals.append(report.Goal(name, max(values), GOALS_S[victim], at_least=False))
    for programs in dict.fromkeys(n for _, n in seen):
        rows = [(victim, v) for (victim, n), v in seen.items() if n == programs]
        medians = [float(np.median(v)) for _, v in rows]
        made[0].series.append(report.Series(f"{programs} programs", [victim for victim, _ in rows], medians))
        if programs > 1:
            made.append(report.Report(f"pauses-{programs}", f"Pauses of {programs} programs", []))
            made[-1].x_label, made[-1].y_label = "longest pause of a program, s", "% of programs, at most"
            for victim, values in rows:
                longest = [float(np.percentile(values, share)) for share in range(101)]
                made[-1].series.append(report.Series(victim, longest, list(range(101))))
    return made


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(BY_NAME):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: choose from {', '.join(BY_NAME)}")
    return [BY_NAME[name] for name in names]


def _counts(text: str) -> list[int]:
    return [report.positive(part) for part in text.split(",")]


def main() -> int:
    """Run the command line."""
    parser = report.parser("pauses", __doc__, repeat=1)
    told = f"what to kill, of {', '.join(BY_NAME)} (default: each in turn); standby: control beside a second one"
    parser.add_argument("--kill", type=_names, default=list(VICTIMS), metavar="LIST", help=told)
    told = f"how many at a time (default {','.join(map(str, PROGRAMS))})"
    parser.add_argument("--programs", type=_counts, default=list(PROGRAMS), metavar="LIST", help=told)
    args = parser.parse_args()
    install_uvloop()
    return report.emit(tables(asyncio.run(measure(args))), args)


if __name__ == "__main__":
    sys.exit(main())
