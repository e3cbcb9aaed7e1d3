"""How long programs stand still when a process is killed: the longest time between two tokens of each program.

The programs decode on a fake engine whose steps take 20 ms. One more engine of the same kind stands by. Once all
programs decode, SIGKILL hits the process. The variant "nothing" kills none: its gaps are those of a busy machine.
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
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np

import tartlet
from bench.harness import report
from bench.harness.stack import running_stack, until_engines
from bench.overhead import HERE
from bench.product.common import install_uvloop
from tartlet.local import LocalStack

VICTIMS = ("nothing", "worker", "runtime", "control")
DEFAULT_VICTIMS = ("nothing", "worker")
PROGRAMS = (1, 1000)
TOKENS = 24
STEP_S = 0.02
SETTLE_S = 0.2
GOAL_S = 2.0
WORKER = ("--engine", "fake", "--fake-step-s", str(STEP_S), "--log-level", "warning")


@asynccontextmanager
async def stack_with_spare(runtime: Sequence[str]) -> AsyncIterator[LocalStack]:
    """Start a stack, and a second worker that programs can go on at. `runtime`: flags of the runtime."""
    place = Path(tempfile.mkdtemp(prefix="tt-"))
    flags = {"worker": WORKER[2:4], "runtime": runtime}
    try:
        async with running_stack(engine="fake", flags=flags, directory=place) as stack:
            env = {**os.environ, "TARTLET_RUN_DIR": str(place)}
            command = [sys.executable, "-m", "tartlet_cli", "serve", "--role", "worker", *WORKER]
            with (place / "logs" / "spare.log").open("wb") as log:
                spare = await asyncio.create_subprocess_exec(*command, env=env, stdout=log, stderr=log)
                try:
                    yield stack
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        spare.kill()
                    await spare.wait()
    finally:
        shutil.rmtree(place, ignore_errors=True)


async def gaps(stack: LocalStack, victim: str, programs: int) -> list[float]:
    """Let programs decode, kill a process, and return the longest gap of each program, s."""
    source = tartlet.Source.from_file(HERE / "guests" / "gaps.py")
    async with tartlet.AsyncClient(stack.address) as client:
        await until_engines(client, 2)
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
            await client.send_many([(program_id, b"go") for program_id in launched])
            await asyncio.sleep(SETTLE_S)
            if victim != "nothing":
                os.kill(stack.pid(victim), signal.SIGKILL)
        return results


async def measure(args: argparse.Namespace) -> dict[tuple[str, int], list[float]]:
    """Measure all variants; each has a stack of its own."""
    seen: dict[tuple[str, int], list[float]] = {}
    for programs in args.programs:
        for victim in args.kill:
            async with stack_with_spare(("--capacity", str(programs + 8))) as stack:
                begin_s = time.monotonic()
                found = await gaps(stack, victim, programs)
            seen[victim, programs] = found
            told = f"median {np.median(found):.2f} s, longest {max(found):.2f} s"
            report.progress(
                f"pauses: {victim} killed, {programs} programs: {told} ({time.monotonic() - begin_s:.0f} s)"
            )
    return seen


def table(seen: dict[tuple[str, int], list[float]]) -> report.Report:
    """Make the table."""
    made = report.Report("pauses", "Longest pause of each program", ["killed", "programs", "median s", "longest s"])
    made.x_label, made.y_label = "killed", "longest pause of the median program, s"
    for (victim, programs), values in seen.items():
        made.rows.append((victim, programs, float(np.median(values)), max(values)))
    alone = seen.get(("worker", 1))
    if alone:
        made.goals.append(
            report.Goal("worker killed, one program, longest pause, s", max(alone), GOAL_S, at_least=False)
        )
    for programs in dict.fromkeys(n for _, n in seen):
        rows = [(victim, float(np.median(v))) for (victim, n), v in seen.items() if n == programs]
        made.series.append(report.Series(f"{programs} programs", [v for v, _ in rows], [s for _, s in rows]))
    return made


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(VICTIMS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: choose from {', '.join(VICTIMS)}")
    return names


def _counts(text: str) -> list[int]:
    return [report.positive(part) for part in text.split(",")]


def main() -> int:
    """Run the command line."""
    parser = report.parser("pauses", __doc__, repeat=1)
    told = f"what to kill, of {', '.join(VICTIMS)} (default {','.join(DEFAULT_VICTIMS)})"
    parser.add_argument("--kill", type=_names, default=list(DEFAULT_VICTIMS), metavar="LIST", help=told)
    told = f"how many at a time (default {','.join(map(str, PROGRAMS))})"
    parser.add_argument("--programs", type=_counts, default=list(PROGRAMS), metavar="LIST", help=told)
    args = parser.parse_args()
    install_uvloop()
    return report.emit([table(asyncio.run(measure(args)))], args)


if __name__ == "__main__":
    sys.exit(main())
