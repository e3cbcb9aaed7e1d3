"""A session of many messages: one program that begins its next run with `continue_as_new` again and again.

The program answers each message with the count and the sum of all messages so far, so a message that is lost, repeated
or out of order makes a wrong answer. Meanwhile the memory of the runtime and of control is measured, and the bytes of
the largest journal. Growth is the slope of a line through the measurements behind the first third, when the output that
the runtime keeps has reached its bound (1 MiB). Memory is what the process has written (anonymous pages): the kernel
drops and reads again the pages of mapped files, such as compiled components, as other processes need memory.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import tartlet
from bench.harness import report
from bench.harness.stack import running_stack, until_engines
from bench.overhead import HERE
from bench.product.common import install_uvloop
from tartlet import AsyncClient
from tartlet.local import LocalStack

MESSAGES = 100_000
EVERY = 500
AT_ONCE = 20
AHEAD = 40
WATCH_S = 0.5
ROWS = 10
OUTPUT = 1 << 20
"""Bytes of output that the runtime keeps for clients that attach later: with less, memory stops growing sooner."""
GOAL_MIB = 16.0
GOAL_JOURNAL = 1 << 20


@dataclass
class Seen:
    """What one session said and took."""

    messages: int
    every: int
    wrong: list[str] = field(default_factory=list)
    """Answers that aren't the ones expected, and a wrong result."""
    answered: int = 0
    seconds: float = 0.0
    taken: list[tuple[int, float, float, int]] = field(default_factory=list)
    """Messages answered, MiB of the runtime, MiB of control, and bytes of the largest journal, at each measurement."""

    def growth(self, column: int) -> float:
        """Return how much a column grows in as many messages as the session has."""
        behind = np.array([row for row in self.taken if 3 * row[0] >= self.messages], float)
        if len(behind) < 3:
            raise RuntimeError("the session was over too soon to measure it: ask for more messages")
        slope, _ = np.polyfit(behind[:, 0], behind[:, column], 1)
        return float(slope) * self.messages


async def talk(client: AsyncClient, seen: Seen) -> None:
    """Send the numbers from 1 on, and check the answers.

    Raises:
        TartletError: the program failed, or a message could not be sent.
    """
    args = [str(n) for n in (seen.every, seen.messages, 0, 0, 1)]
    source = tartlet.Source.from_file(HERE / "guests" / "session.py")
    run = await client.run(
        spec=tartlet.LaunchSpec(source=source, args=args, limits=tartlet.Limits(output_bytes=OUTPUT))
    )
    room = asyncio.Semaphore(AHEAD)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(send(client, run.program_id, seen.messages, room))
        async for event in run:
            if isinstance(event, tartlet.Message):
                hear(event.text.splitlines(), seen, room)
        assert run.ended is not None
        if run.ended.error is not None:
            raise run.ended.error
        runs = -(-seen.messages // seen.every)
        if run.ended.result != f"{seen.messages * (seen.messages + 1) // 2} in {runs} runs":
            seen.wrong.append(f"result {run.ended.result}")


async def send(client: AsyncClient, program_id: str, messages: int, room: asyncio.Semaphore) -> None:
    """Send the numbers, some at once, as long as there is room.

    Raises:
        TartletError: one could not be sent.
    """
    for first in range(1, messages + 1, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, messages + 1))
        for _ in numbers:
            await room.acquire()
        for error in await client.send_many([(program_id, str(n)) for n in numbers]):
            if error is not None:
                raise error


def hear(lines: list[str], seen: Seen, room: asyncio.Semaphore) -> None:
    """Check answers."""
    for line in lines:
        seen.answered += 1
        if line != f"{seen.answered} {seen.answered * (seen.answered + 1) // 2}":
            seen.wrong.append(line)
        room.release()


def anonymous_mib(pid: int) -> float:
    """Return the MiB of a process's anonymous pages."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024


async def watch(stack: LocalStack, directory: Path, seen: Seen) -> None:
    """Measure until cancelled."""
    while True:
        runtime, control = (anonymous_mib(stack.pid(role)) for role in ("runtime", "control"))
        journals = [path.stat().st_size for path in (directory / "journals").glob("*")]
        seen.taken.append((seen.answered, runtime, control, max(journals, default=0)))
        await asyncio.sleep(WATCH_S)


async def measure(messages: int, every: int) -> Seen:
    """Hold a session on a stack of its own."""
    seen = Seen(messages, every)
    with tempfile.TemporaryDirectory(prefix="tt-") as made:
        directory = Path(made)
        async with running_stack(engine="fake", directory=directory) as stack, AsyncClient(stack.address) as client:
            await until_engines(client, 1)
            begin_s = time.monotonic()
            watching = asyncio.create_task(watch(stack, directory, seen))
            try:
                await talk(client, seen)
            finally:
                watching.cancel()
            seen.seconds = time.monotonic() - begin_s
    return seen


def table(seen: Seen) -> report.Report:
    """Make the table."""
    columns = ["messages", "runtime MiB", "control MiB", "largest journal, KiB"]
    made = report.Report("sessions", f"A session of {seen.messages:,} messages", columns)
    for part in range(1, ROWS + 1):
        upto = [row for row in seen.taken if row[0] * ROWS <= part * seen.messages]
        messages, runtime, control, journal = upto[-1]
        made.rows.append((messages, round(runtime, 1), round(control, 1), round(journal / 1024, 1)))
    rate = seen.messages / seen.seconds
    made.notes.append(f"{seen.every} messages a run, {rate:.0f} messages a second, {seen.seconds:.0f} s")
    made.notes += seen.wrong[:5]
    largest = max(row[3] for row in seen.taken)
    told = f"in {seen.messages:,} messages, MiB"
    for name, value, bound in (
        ("wrong answers", float(len(seen.wrong) + abs(seen.messages - seen.answered)), 0.0),
        (f"growth of the runtime {told}", seen.growth(1), GOAL_MIB),
        (f"growth of control {told}", seen.growth(2), GOAL_MIB),
        ("largest journal, bytes", float(largest), float(GOAL_JOURNAL)),
    ):
        made.goals.append(report.Goal(name, value, bound, at_least=False))
    made.x_label, made.y_label = "messages", "MiB"
    for column, name in ((1, "runtime"), (2, "control")):
        made.series.append(
            report.Series(name, [row[0] for row in seen.taken], [float(row[column]) for row in seen.taken])
        )
    return made


def main() -> int:
    """Run the command line."""
    parser = report.parser("sessions", __doc__, repeat=1)
    for name, default, told in (("messages", MESSAGES, "of the session"), ("every", EVERY, "messages of each run")):
        parser.add_argument(f"--{name}", type=report.positive, default=default, metavar="N", help=f"{told} ({default})")
    args: argparse.Namespace = parser.parse_args()
    install_uvloop()
    return report.emit([table(asyncio.run(measure(args.messages, args.every)))], args)


if __name__ == "__main__":
    sys.exit(main())
