"""An agent with 8 local tool calls, as one program in the runtime, and driven by its client.

Client and runtime are 10 ms apart, there and back: a proxy holds each byte for 5 ms in each direction. The program
makes all calls itself. The client keeps the history, asks for each completion over gRPC with a program that continues a
prompt, and runs the tool itself; the prefix cache keeps the engine from computing the history again. Both generate as
many tokens. The demo model, greedy.

*latency* is that of one agent alone, *throughput* that of many agents at once.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import tartlet
from bench.harness import report
from bench.harness.stack import running_stack
from bench.product.common import install_uvloop
from bench.programs.delay import delaying

GUESTS = Path(__file__).resolve().parents[1] / "guests"
MODEL = Path(__file__).resolve().parents[2] / "models" / "demo"
ROUND_TRIP_S = 0.010
CALLS = 8
GOAL_LATENCY: Final = 0.85
GOAL_THROUGHPUT: Final = 1.3
Agent = Callable[[], Awaitable[list[int]]]


def prompt(length: int) -> list[int]:
    """Return the prompt of the guest `agent.py`."""
    return [10 + i * 7 % 200 for i in range(length)]


def tool(tokens: list[int]) -> list[int]:
    """Return what the tool of the guest `agent.py` says."""
    return [10 + (31 * token + i) % 200 for i, token in enumerate(tokens[-8:])]


class Agents:
    """Both kinds of agent, for one client."""

    def __init__(self, client: tartlet.AsyncClient, length: int, tokens: int) -> None:
        self._client, self._length, self._tokens = client, length, tokens
        self._program = tartlet.Source.from_file(GUESTS / "agent.py")
        self._turn = tartlet.Source.from_file(GUESTS / "turn.py")

    async def _ask(self, source: tartlet.Source, *args: str) -> list[int]:
        run = await self._client.run(spec=tartlet.LaunchSpec(source=source, args=list(args), durable=False))
        async for _ in run:
            pass
        assert run.ended is not None
        if not run.ended.success:
            raise RuntimeError(f"an agent failed: {run.ended.error}")
        told: list[int] = json.loads(run.ended.result or "[]")
        return told

    async def program(self) -> list[int]:
        """Let one program do all."""
        return await self._ask(self._program, str(self._length), str(CALLS), str(self._tokens))

    async def driven(self) -> list[int]:
        """Ask for each completion, and run the tool here."""
        history, made = prompt(self._length), []
        for call in range(CALLS + 1):
            tokens = await self._ask(self._turn, json.dumps(history), str(self._tokens))
            made += tokens
            history += tokens
            if call < CALLS:
                history += tool(tokens)
        return made


async def throughput(agent: Agent, at_once: int, count: int) -> float:
    """Return the agents that end in a second while `at_once` run, until `count` have ended."""
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            await agent()

    start_s = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(at_once)))
    return count / (time.perf_counter() - start_s)


async def measure(repeat: int, length: int, tokens: int, at_once: int, count: int) -> report.Report:
    """Measure both kinds in turns."""
    latency: dict[str, list[float]] = {"program": [], "driven": []}
    rates: dict[str, list[float]] = {"program": [], "driven": []}
    with tempfile.TemporaryDirectory(prefix="tt-") as scratch:
        async with (
            running_stack(model=MODEL, directory=Path(scratch)) as stack,
            delaying(Path(scratch) / "far.sock", Path(stack.address.removeprefix("unix:")), ROUND_TRIP_S) as address,
            tartlet.AsyncClient(address) as client,
        ):
            agents = Agents(client, length, tokens)
            kinds: dict[str, Agent] = {"program": agents.program, "driven": agents.driven}
            some, others = await agents.program(), await agents.driven()  # warms up: sandboxes, prefixes
            if len(some) != len(others):
                raise RuntimeError(f"one kind of agent generated {len(some)} tokens, the other {len(others)}")
            order = list(kinds)
            for turn in range(repeat):
                for kind in order:
                    start_s = time.perf_counter()
                    await kinds[kind]()
                    latency[kind].append(time.perf_counter() - start_s)
                order.reverse()
                report.progress(f"agents: turn {turn + 1} of {repeat}")
            for turn in range(2):
                for kind in order:
                    rates[kind].append(await throughput(kinds[kind], at_once, count))
                order.reverse()
                report.progress(f"agents: throughput, turn {turn + 1} of 2")
    return tabulated(latency, rates, length, tokens, at_once)


def tabulated(
    latency: dict[str, list[float]], rates: dict[str, list[float]], length: int, tokens: int, at_once: int
) -> report.Report:
    """Make the table."""
    title = f"An agent with {CALLS} local tool calls, client and runtime {ROUND_TRIP_S * 1e3:.0f} ms apart"
    made = report.Report("agents", title, ["agent", "latency ms", f"agents a second, {at_once} at once"])
    for kind, name in (("program", "a program in the runtime"), ("driven", "driven by its client")):
        made.rows.append((name, statistics.median(latency[kind]) * 1e3, statistics.median(rates[kind])))
    shorter = statistics.median(a / b for a, b in zip(latency["program"], latency["driven"], strict=True))
    faster = statistics.median(a / b for a, b in zip(rates["program"], rates["driven"], strict=True))
    made.rows.append(("ratio", shorter, faster))
    made.notes.append(f"prompt {length} tokens, {tokens} before each call and at the end; 8 tokens of each tool")
    made.goals.append(report.Goal("latency, program over driven", shorter, GOAL_LATENCY, at_least=False))
    made.goals.append(report.Goal("throughput, program over driven", faster, GOAL_THROUGHPUT, at_least=True))
    return made


def main() -> int:
    """Run the command line."""
    parser = report.parser("agents", __doc__, repeat=4, plots=False)
    parser.add_argument("--prompt", type=report.positive, default=128, metavar="N", help="tokens (default %(default)s)")
    parser.add_argument("--tokens", type=report.positive, default=24, metavar="N", help="a turn (default %(default)s)")
    parser.add_argument("--at-once", type=report.positive, default=16, metavar="N", help="agents (default %(default)s)")
    parser.add_argument(
        "--count", type=report.positive, default=32, metavar="N", help="of a load (default %(default)s)"
    )
    args = parser.parse_args()
    install_uvloop()
    return report.emit([asyncio.run(measure(args.repeat, args.prompt, args.tokens, args.at_once, args.count))], args)


if __name__ == "__main__":
    sys.exit(main())
