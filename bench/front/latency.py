"""What the gateway adds to a chat's first token, at 10 and 100 requests a second and with a prompt of 100,000 tokens.

Each request asks for one token of the fake engine, which computes in no time. Three ways are measured in turns: over
HTTP, streamed, to the first event with text; the same inferlet with the same request, launched over gRPC, to its first
message with text; and the same body sent to a bare ASGI application, to its event. Requests leave at even distances,
whatever those before them do; with the long prompt, one after the other. The engine's own first token is that of a
plain loop over the fake engine in this process.

The CPU time is that of the gateway's process: of a request with one token, and of each further streamed token.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

import tartlet
from bench.engine_loop import BareLoop
from bench.front.wire import Connections, connections, request, until_served
from bench.harness import report
from bench.harness.intervals import median
from bench.harness.stack import free_ports, running_stack, until_engines
from bench.product.common import install_uvloop
from bench.product.worker import FakeEngine, FakeOptions

RATES: Final = (10, 100)
LONG: Final = 100_000
SHORT: Final = 200
MORE_TOKENS: Final = 128
GOALS_MS: Final = (2.0, 5.0)
PATH: Final = "/v1/chat/completions"
WAYS: Final = ("HTTP", "gRPC", "echo")
INFERLET: Final = Path(__file__).resolve().parents[2] / "inferlets" / "std" / "openai_chat.py"
_TEXT: Final = b'"type":"delta"'
_PAGE: Final = 32

Send = Callable[[dict[str, Any]], Awaitable[float]]
"""Sends a chat; returns the seconds to its first token."""


@dataclass(slots=True)
class Seen:
    """Seconds to the first token, of each way, and the median and the 99th percentile of each round."""

    rounds: dict[str, list[np.ndarray]] = field(default_factory=lambda: {way: [] for way in WAYS})

    def quantile_ms(self, way: str, share: float) -> float:
        """Return the median over the rounds of a quantile, milliseconds."""
        return median([float(np.quantile(times, share)) * 1e3 for times in self.rounds[way]])

    def added_ms(self, share: float) -> float:
        """Return the median over the rounds of HTTP's quantile less gRPC's."""
        pairs = zip(self.rounds["HTTP"], self.rounds["gRPC"], strict=True)
        return median([float(np.quantile(ours, share) - np.quantile(theirs, share)) * 1e3 for ours, theirs in pairs])


def chat(tokens: int, rng: random.Random, *, answer: int = 1) -> dict[str, Any]:
    """Return a chat whose prompt has about so many tokens and begins like no other: no row is computed before."""
    begins = f"{rng.getrandbits(64):016x} "
    content = begins + "The quick brown fox jumps over the lazy dog. " * (tokens // 45 + 1)
    messages = [{"role": "user", "content": content[:tokens]}]
    return {"model": "fake", "messages": messages, "max_tokens": answer, "temperature": 0, "ignore_eos": True}


class Sides:
    """The three ways that are compared."""

    def __init__(self, client: tartlet.AsyncClient, gateway: Connections, echo: Connections) -> None:
        self._client, self._gateway, self._echo = client, gateway, echo
        self._source = tartlet.Source.from_file(INFERLET)
        self.ways: dict[str, Send] = {"HTTP": self.http, "gRPC": self.grpc, "echo": self.echo}

    async def http(self, body: dict[str, Any]) -> float:
        """Send a streamed chat to the gateway."""
        return (
            await self._gateway.streamed(request("POST", PATH, self._gateway.port, body | {"stream": True}))
        ).first_s

    async def echo(self, body: dict[str, Any]) -> float:
        """Send the same body to the bare application."""
        return await self._posted(self._echo, body)

    async def _posted(self, to: Connections, body: dict[str, Any]) -> float:
        return (await to.streamed(request("POST", PATH, to.port, body | {"stream": True}))).first_s

    async def grpc(self, body: dict[str, Any]) -> float:
        """Launch the same inferlet with the request that the gateway would give it."""
        begun, first_s = time.perf_counter(), 0.0
        args = [json.dumps({name: value for name, value in body.items() if name != "model"})]
        spec = tartlet.LaunchSpec(source=self._source, args=args, model="fake", durable=False)
        run = await self._client.run(spec=spec)
        async for event in run:
            if isinstance(event, tartlet.Message) and not first_s and _TEXT in event.data:
                first_s = time.perf_counter() - begun
        if run.ended is None or not run.ended.success or not first_s:
            raise RuntimeError(f"the inferlet sent no text: {run.ended}")
        return first_s


async def at_rate(send: Send, bodies: Sequence[dict[str, Any]], rate: float) -> np.ndarray:
    """Send each body at its time; seconds to each first token, [n]."""
    begun = time.perf_counter()

    async def one(i: int, body: dict[str, Any]) -> float:
        await asyncio.sleep(max(0.0, begun + i / rate - time.perf_counter()))
        return await send(body)

    return np.array(await asyncio.gather(*(one(i, body) for i, body in enumerate(bodies))))


async def one_by_one(send: Send, bodies: Sequence[dict[str, Any]]) -> np.ndarray:
    """Send one body after the other; seconds to each first token, [n]."""
    return np.array([await send(body) for body in bodies])


def engine_ms(tokens: int) -> float:
    """Return the milliseconds of a plain loop's first token on the fake engine, median of five."""
    engine = FakeEngine(FakeOptions(num_pages=(tokens + 1) // _PAGE + 2, page_size=_PAGE, num_embeds=tokens + 2))
    loop = BareLoop(engine, 1, tokens, 1)
    return median([loop.run([[i % 200 for i in range(tokens)]]).prefill_s * 1e3 for _ in range(5)])


async def measure(args: argparse.Namespace) -> list[report.Report]:
    """Make the tables of latency and of CPU time."""
    rng = random.Random(7)
    port, echo_port = free_ports(2)
    flags = {"worker": ["--page-size", str(_PAGE)]}  # 4,096 pages: a long prompt fits
    echo = await asyncio.create_subprocess_exec(sys.executable, "-m", "bench.front.echo", str(echo_port))
    try:
        async with (
            running_stack(engine="fake", flags=flags, http=f"127.0.0.1:{port}") as stack,
            tartlet.AsyncClient(stack.address) as client,
            connections(port) as gateway,
            connections(echo_port) as bare,
        ):
            await until_served(echo_port)
            await until_engines(client, 1)
            sides = Sides(client, gateway, bare)
            for _ in range(20):
                for send in sides.ways.values():
                    await send(chat(SHORT, rng))
            seen: dict[str, Seen] = {}
            for i in range(args.repeat):
                report.progress(f"latency: {i + 1} of {args.repeat}")
                for rate in RATES:
                    kept = seen.setdefault(f"{rate} a second", Seen())
                    bodies = [chat(SHORT, rng) for _ in range(3 * round(rate * args.seconds))]
                    await _round(kept, sides, bodies, rate, turned=bool(i % 2))
                kept = seen.setdefault(f"prompt of {LONG} tokens", Seen())
                await _round(kept, sides, [chat(LONG, rng) for _ in range(3 * args.long)], 0, turned=bool(i % 2))
            cpu = await _cpu(stack.pid("gateway"), sides, rng, args.cpu_requests)
    finally:
        echo.terminate()
        await echo.wait()
    return [_latency(seen), cpu]


async def _round(seen: Seen, sides: Sides, bodies: Sequence[dict[str, Any]], rate: float, *, turned: bool) -> None:
    """Send a third of the bodies on each way: `rate` a second, 0: one after the other."""
    for at, way in enumerate(WAYS[::-1] if turned else WAYS):
        own = bodies[at :: len(WAYS)]
        send = sides.ways[way]
        seen.rounds[way].append(await (at_rate(send, own, rate) if rate else one_by_one(send, own)))


def _latency(seen: dict[str, Seen]) -> report.Report:
    columns = ["requests", "measured", *(f"{way} p{at}, ms" for way in WAYS for at in (50, 99))]
    columns += ["added p50, ms", "added p99, ms", "engine's own, ms", "over it p50, ms"]
    result = report.Report("gateway-latency", "Gateway: to the first token of a chat", columns)
    for label, times in seen.items():
        count = sum(map(len, times.rounds["HTTP"]))
        own = engine_ms(LONG if str(LONG) in label else SHORT)
        quantiles = [times.quantile_ms(way, share) for way in WAYS for share in (0.5, 0.99)]
        added = [times.added_ms(0.5), times.added_ms(0.99)]
        result.rows.append((label, count, *quantiles, *added, own, quantiles[0] - own))
        for name, value, goal in zip(("p50", "p99"), added, GOALS_MS, strict=True):
            result.goals.append(report.Goal(f"{label}, added {name}, ms", value, goal, at_least=False))
    result.notes.append("added: over HTTP less over gRPC, by quantile, round by round; the median of the rounds")
    return result


async def _cpu(pid: int, sides: Sides, rng: random.Random, requests: int) -> report.Report:
    """Measure the gateway's CPU time of a request, and of a token beyond the first."""
    process = psutil.Process(pid)
    used: dict[int, float] = {}
    for tokens in (1, 1 + MORE_TOKENS):
        before = process.cpu_times()
        for _ in range(requests):
            await sides.http(chat(SHORT, rng, answer=tokens))
        after = process.cpu_times()
        used[tokens] = (after.user + after.system - before.user - before.system) / requests
    token_us = (used[1 + MORE_TOKENS] - used[1]) / MORE_TOKENS * 1e6
    result = report.Report("gateway-cpu", "Gateway: CPU time", ["of the gateway's process", "us"])
    result.rows = [("a chat with one token", used[1] * 1e6), ("each further streamed token", token_us)]
    result.notes.append(f"{requests} chats of 1 and of {1 + MORE_TOKENS} tokens, one after the other")
    return result


def main() -> int:
    """Run the command line."""
    parser = report.parser("gateway", __doc__, repeat=3)
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="of each way and rate (%(default)s)")
    parser.add_argument("--long", type=report.positive, default=5, metavar="N", help="long prompts of a round")
    parser.add_argument("--cpu-requests", type=report.positive, default=200, metavar="N", help="for the CPU time")
    args = parser.parse_args()
    install_uvloop()
    return report.emit(asyncio.run(measure(args)), args)


if __name__ == "__main__":
    sys.exit(main())
