"""Kills processes at random under 200 durable programs, and checks that nobody notices.

The programs think, fork, wait for messages and call a tool, on the fake engine, whose tokens depend on all that a
context holds. Their journals are in a Redis. Whenever a program ends, its result is compared with that of the same
program on an undisturbed server, and another program takes its place. SIGKILL hits one of the chosen processes every
few seconds. A tool call counts as repeated if the tool hears of it twice. At the end no page may be held.

Two minutes are the default; `--seconds 3600` is the long run.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import tartlet
from bench.harness import report
from bench.harness.redis import RedisServer
from bench.harness.stack import until_engines
from bench.overhead import HERE
from bench.product.common import install_uvloop
from bench.survival.pauses import stack_with_spare
from tartlet.local import LocalStack
from tartlet_common.errors.registry import TartletError

FAULTS = ("worker", "redis", "runtime", "control")
PROGRAMS = 200
VARIANTS = 16
PAUSE_S = (1.0, 6.0)
"""Shortest and longest time between two faults."""
GRACE_S = 60.0
"""How long Redis may be away: on a busy machine its start alone takes seconds."""
FOLLOW_S = 120.0
"""How long a client tries to launch, follow or tell a program while nobody answers, unless the flags say otherwise."""
MOST_LINES = 40
"""Most lines of logs that are shown of programs that ended in an error."""
HELD_S = 30.0
"""How long freed pages may take to be counted as free after the last program."""


@dataclass
class Seen:
    """What happened."""

    ended: int = 0
    wrong: list[str] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    repeated: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    """The ids of the programs that ended in an error."""
    longest_s: float = 0.0
    """Longest time between two events of a program."""


class Tool:
    """Answers the calls of programs, and counts those that it hears of twice."""

    def __init__(self, client: tartlet.AsyncClient, seen: Seen) -> None:
        self._client = client
        self._seen = seen
        self._heard: set[tuple[str, str]] = set()

    async def hear(self, program_id: str, line: str) -> None:
        """Answer a program's line."""
        kind, number, *rest = line.split()
        if kind == "call":
            self._seen.calls += 1
            self._seen.repeated += (program_id, number) in self._heard
            self._heard.add((program_id, number))
            await self._client.send(program_id, f"tool answer {number} {' '.join(rest)}")
        else:
            await self._client.send(program_id, f"message {number}")


async def follow(client: tartlet.AsyncClient, spec: tartlet.LaunchSpec, tool: Tool, seen: Seen) -> str:
    """Launch a program, answer it to its end, and return its result.

    Raises:
        TartletError: why it ended otherwise.
    """
    program_id = (await client.launch(spec=spec)).program_id
    run = await client.attach(program_id)
    last_s = time.monotonic()
    try:
        async for event in run:
            now_s = time.monotonic()
            seen.longest_s, last_s = max(seen.longest_s, now_s - last_s), now_s
            if isinstance(event, tartlet.Message):
                for line in event.text.splitlines():
                    await tool.hear(program_id, line)
    except TartletError as e:
        silent_s = time.monotonic() - last_s
        seen.lost.append(program_id)
        e.add_note(f"the client of program {program_id} had heard nothing for {silent_s:.0f} s")
        raise
    assert run.ended is not None
    if run.ended.error is not None:
        seen.lost.append(program_id)
        raise run.ended.error
    return run.ended.result or ""


def spec_of(source: tartlet.Source, variant: int) -> tartlet.LaunchSpec:
    """Return a launch of a variant of the program."""
    key = uuid.uuid4().hex
    return tartlet.LaunchSpec(source=source, args=[str(variant)], durability="on", seed=variant, idempotency_key=key)


async def slot(
    client: tartlet.AsyncClient, source: tartlet.Source, expected: list[str], end_s: float, seen: Seen
) -> None:
    """Run one program after another until the time is over."""
    while time.monotonic() < end_s:
        variant = random.randrange(VARIANTS)
        try:
            result = await follow(client, spec_of(source, variant), Tool(client, seen), seen)
        except TartletError as e:
            seen.failed[e.name] += 1
            report.progress(f"chaos: a program ended in {e.name}: {str(e)[-300:]} {getattr(e, '__notes__', '')}")
            continue
        seen.ended += 1
        if result != expected[variant]:
            seen.wrong.append(f"variant {variant}: {result[:16]} instead of {expected[variant][:16]}")


async def kill(stack: LocalStack, redis: RedisServer, faults: list[str], end_s: float, seen: Seen) -> None:
    """Kill one of the processes every few seconds, each as often as the others, and wait until its successor serves."""
    left: list[str] = []
    while (pause_s := random.uniform(*PAUSE_S)) + time.monotonic() < end_s:
        await asyncio.sleep(pause_s)
        left = left or random.sample(faults, len(faults))
        fault = left.pop()
        report.progress(f"chaos: SIGKILL to {fault}, {seen.ended} programs have ended")
        seen.faults[fault] += 1
        if fault == "redis":
            redis.kill()
            await asyncio.to_thread(redis.start)
            continue
        pid = stack.pid(fault)
        os.kill(pid, signal.SIGKILL)
        while stack.pid(fault) == pid:  # noqa: ASYNC110 - the stack starts another process
            await asyncio.sleep(0.05)
        await stack.until_serving(fault)


async def held_pages(client: tartlet.AsyncClient) -> int:
    """Return how much of the engines' memory is held after programs have ended."""
    end_s = time.monotonic() + HELD_S
    while True:
        state = (await client.state()).control
        held = sum(pool["held"] for engine in state["engines"] for pool in engine["pools"].values())
        if not held or time.monotonic() > end_s:
            return int(held + state["totals"]["leaks"])
        await asyncio.sleep(0.1)


def lines_about(logs: Path, program_ids: list[str]) -> list[str]:
    """Return what the logs of the roles say of programs."""
    found = []
    for file in sorted(logs.iterdir()):
        lines = file.read_text(errors="replace").splitlines()
        found += [f"{file.name}: {line}" for line in lines if any(program_id in line for program_id in program_ids)]
    return found


async def measure(args: argparse.Namespace) -> tuple[Seen, int, float]:
    """Run the programs, kill, and return what happened, pages held at the end, and the seconds it took."""
    random.seed(args.seed)
    source = tartlet.Source.from_file(HERE / "guests" / "wanderer.py")
    seen = Seen()
    patience_s = args.patience_s
    with RedisServer() as redis:
        flags = ["--journal-url", redis.url, "--journal-grace-s", str(GRACE_S)]
        async with stack_with_spare(flags) as stack, tartlet.AsyncClient(stack.address, retry_s=patience_s) as client:
            await until_engines(client, 2)
            tool = Tool(client, Seen())
            runs = (follow(client, spec_of(source, variant), tool, Seen()) for variant in range(VARIANTS))
            expected = list(await asyncio.gather(*runs))
            if len(set(expected)) < VARIANTS:
                raise RuntimeError("programs of different seeds had the same result: a wrong one would go unnoticed")
            begin_s = time.monotonic()
            end_s = begin_s + args.seconds
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(kill(stack, redis, args.kill, end_s, seen))
                for _ in range(args.programs):
                    tasks.create_task(slot(client, source, expected, end_s, seen))
            for line in lines_about(stack.log_dir, seen.lost)[:MOST_LINES]:
                report.progress(f"chaos: {line}")
            return seen, await held_pages(client), time.monotonic() - begin_s


def table(seen: Seen, held: int, seconds: float, args: argparse.Namespace) -> report.Report:
    """Make the table."""
    made = report.Report("chaos", "Durable programs while processes are killed at random", ["what", "count"])
    made.rows += [("SIGKILL to " + fault, seen.faults[fault]) for fault in args.kill]
    made.rows += [("programs that ended", seen.ended), ("tool calls", seen.calls)]
    made.rows += [("programs that ended in " + name, count) for name, count in seen.failed.items()]
    made.rows += [("wrong outputs", len(seen.wrong)), ("repeated tool calls", seen.repeated), ("leaked pages", held)]
    made.rows.append(("longest silence of a program, s", round(seen.longest_s, 1)))
    made.notes += [f"{args.programs} programs at a time, {seconds:.0f} s, seed {args.seed}", *seen.wrong[:5]]
    failed = sum(seen.failed.values())
    for name, value in {
        "wrong outputs": len(seen.wrong),
        "programs that ended in an error": failed,
        "repeated tool calls": seen.repeated,
        "leaked pages": held,
    }.items():
        made.goals.append(report.Goal(name, float(value), 0.0, at_least=False))
    return made


def faults_of(text: str) -> list[str]:
    """Parse the processes to kill."""
    faults = text.split(",")
    if unknown := set(faults) - set(FAULTS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: choose from {', '.join(FAULTS)}")
    return faults


def main() -> int:
    """Run the command line."""
    parser = report.parser("chaos", __doc__, repeat=1)
    told = f"processes to kill, of {', '.join(FAULTS)} (default: all)"
    parser.add_argument("--kill", type=faults_of, default=list(FAULTS), metavar="LIST", help=told)
    parser.add_argument("--seconds", type=float, default=120.0, metavar="S", help="how long (default %(default)s)")
    parser.add_argument(
        "--programs", type=report.positive, default=PROGRAMS, metavar="N", help="at a time (default %(default)s)"
    )
    told = "how long a client waits for a program that says nothing (default %(default)s)"
    parser.add_argument("--patience-s", type=float, default=FOLLOW_S, metavar="S", help=told)
    parser.add_argument("--seed", type=int, default=0, help="of the faults (default %(default)s)")
    args = parser.parse_args()
    install_uvloop()
    return report.emit([table(*asyncio.run(measure(args)), args)], args)


if __name__ == "__main__":
    sys.exit(main())
