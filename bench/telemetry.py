"""What telemetry costs: CPU time a token with export on over export off.

Two stacks on the same model run side by side, one without telemetry and one that exports as it does by default; with
`--every-step` also one whose every step has a span. 32 core-Wasm programs of 64 tokens go to the one, then to the
other, in turn, the order alternating; a round is some seconds of that.

The stacks are started anew many times, now the one first and now the other: two processes of one program differ by a
few per cent, by where their memory happens to lie, which is more than what is measured. So a start counts once, as the
median of its rounds, and the ratio is the median of the starts, with its bootstrap interval of 95%. Where the interval
contains 1, the table says "not resolved below N%", N being its farther end. Tokens a second stand beside.

The receiver is a process of its own with the lowest priority, which reads what it is sent and decodes nothing: in
production it is on another machine. Spans are sent every second, not every five, so that a round pays for what it
caused. Two models: the demo model, whose steps take milliseconds, and the 88M model of `bench overhead`.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import tartlet
from bench.batching import DEMO_MODEL, tokens_per_s
from bench.guests.build import build
from bench.harness import report
from bench.harness.intervals import bootstrap_median, median, resolved
from bench.harness.stack import running_stack
from bench.product.common import install_uvloop
from tartlet.local import LocalStack

PROGRAMS: Final = 32
TOKENS: Final = 64
AT_LEAST: Final = 0.98
"""Tokens a second, on over off."""
OFF, ON, ALL = "off", "on", "on, every step"
WORTH_S: Final = 1.5
"""Seconds that a stack is measured for in a round: as many launches of all programs as that takes."""
ROLES: Final = ("control", "runtime", "worker")
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Received:
    """What the receiver has been sent."""

    requests: int
    num_bytes: int
    cpu_s: float


class Receiver:
    """An OTLP receiver in a process of its own."""

    def __init__(self, endpoint: str, pipe: Connection) -> None:
        self.endpoint = endpoint
        self._pipe = pipe

    def received(self) -> Received:
        """Ask what has arrived until now."""
        self._pipe.send(None)
        return Received(*self._pipe.recv())


def _receive(pipe: Connection) -> None:
    import grpc

    os.nice(19)
    seen = [0, 0]

    def take(request: bytes, _: grpc.ServicerContext) -> bytes:
        seen[0] += 1
        seen[1] += len(request)
        return b""  # an empty answer: all was taken

    class Anything(grpc.GenericRpcHandler):
        def service(self, _: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(take)

    server = grpc.server(futures.ThreadPoolExecutor(1), handlers=[Anything()])
    pipe.send(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    while True:
        pipe.recv()
        pipe.send((*seen, time.process_time()))


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Start a receiver."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_receive, args=(theirs,), daemon=True)
    process.start()
    try:
        yield Receiver(f"http://127.0.0.1:{ours.recv()}", ours)
    finally:
        process.kill()
        process.join()


@dataclass(frozen=True, slots=True)
class Seen:
    """What was measured of one kind of stack, over all its starts."""

    speeds: list[float] = field(default_factory=list)  # tokens/s, one a round
    cpu_s: list[float] = field(default_factory=list)  # CPU seconds of all its processes a token, one a round


class Side:
    """One of the stacks that are compared."""

    def __init__(self, stack: LocalStack, client: tartlet.AsyncClient, seen: Seen) -> None:
        self._stack = stack
        self._client = client
        self._seen = seen

    async def launch(self, guest: tartlet.Source) -> float:
        """Run all programs once; tokens a second."""
        return await tokens_per_s(self._client, guest, PROGRAMS, TOKENS)

    def took(self, launches: int, took_s: float, cpu_s: float) -> None:
        """Note the end of a round."""
        tokens = launches * PROGRAMS * TOKENS
        self._seen.speeds.append(tokens / took_s)
        self._seen.cpu_s.append(cpu_s / tokens)

    def used_s(self) -> float:
        """Sum the CPU seconds of the stack's processes until now."""
        return sum(_cpu_s(self._stack.pid(role)) for role in ROLES)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


@asynccontextmanager
async def sides(
    model: Path, worker: Sequence[str], endpoint: str, seen: Mapping[str, Seen]
) -> AsyncIterator[dict[str, Side]]:
    """Start the stacks in the order of `seen`, and connect to them."""
    export = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "1000"}
    async with AsyncExitStack() as stacks:
        found = {}
        for kind, kept in seen.items():
            flags = {"worker": worker, "control": ["--step-spans-per-s", "1000000"] if kind == ALL else []}
            env = {} if kind == OFF else export
            stack = await stacks.enter_async_context(running_stack(model=model, flags=flags, env=env))
            client = await stacks.enter_async_context(tartlet.AsyncClient(stack.address))
            found[kind] = Side(stack, client, kept)
        yield found


async def _round(guest: tartlet.Source, order: list[Side], launches: int) -> None:
    before = [side.used_s() for side in order]
    took = dict.fromkeys(order, 0.0)
    for i in range(launches):
        for side in order if i % 2 else order[::-1]:
            took[side] += PROGRAMS * TOKENS / await side.launch(guest)
    for side, used_s in zip(order, before, strict=True):
        side.took(launches, took[side], side.used_s() - used_s)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    starts: int
    rounds: int  # of each start
    kinds: tuple[str, ...]


async def measure(name: str, title: str, model: Path, worker: Sequence[str], plan: Plan) -> report.Report:
    """Make one model's table."""
    seen = {kind: Seen() for kind in plan.kinds}
    launches = 0
    with receiving() as receiver, tempfile.TemporaryDirectory(prefix="tt-") as directory:
        guest = tartlet.Source.from_file(build(Path(directory))["decode"])
        begun = time.perf_counter()
        for start in range(plan.starts):
            order = list(seen) if start % 2 else list(seen)[::-1]
            async with sides(model, worker, receiver.endpoint, {kind: seen[kind] for kind in order}) as compared:
                speeds = [await side.launch(guest) for side in compared.values() for _ in range(2)]  # warms up
                launches = launches or 2 * max(1, round(WORTH_S * max(speeds) / (PROGRAMS * TOKENS) / 2))
                for i in range(plan.rounds):
                    await _round(guest, list(compared.values()), launches)
                    told = ", ".join(f"{kind} {kept.speeds[-1]:.0f}" for kind, kept in seen.items())
                    report.progress(f"{name}: start {start + 1} of {plan.starts}, round {i + 1}, tokens/s: {told}")
        received, took_s = receiver.received(), time.perf_counter() - begun
    notes = [
        f"{plan.starts} starts, {plan.rounds} rounds of {launches} launches each",
        f"the receiver: {received.num_bytes / took_s / 1e3:.1f} kB/s, {received.cpu_s / took_s:.2%} of a core",
    ]
    return _table(name, title, model.name, seen, plan.rounds, notes)


def _by_start(ours: Sequence[float], off: Sequence[float], rounds: int) -> list[float]:
    """Ratios of one kind of stack over the stack without telemetry: one a start, the median of its rounds."""
    each = [a / b for a, b in zip(ours, off, strict=True)]
    return [median(each[i : i + rounds]) for i in range(0, len(each), rounds)]


def _table(name: str, title: str, model: str, seen: Mapping[str, Seen], rounds: int, notes: list[str]) -> report.Report:
    columns = ["export", "CPU us a token", "of off", "95% interval", "tokens/s", "tokens/s of off"]
    result = report.Report(name, f"Telemetry, {title}", columns, y_label="CPU us a token", notes=notes)
    off = seen[OFF]
    for kind, kept in seen.items():
        cpu = _by_start(kept.cpu_s, off.cpu_s, rounds)
        ratio = median(cpu)
        said = "" if kind == OFF else resolved(*bootstrap_median(cpu))
        speed = median(_by_start(kept.speeds, off.speeds, rounds))
        result.rows.append((kind, median(kept.cpu_s) * 1e6, ratio, said, median(kept.speeds), speed))
        if kind == ON:
            result.goals = [report.Goal(f"tokens/s, on over off, {model}", speed, AT_LEAST, at_least=True)]
    result.series = [report.Series("CPU us a token", list(seen), [median(kept.cpu_s) * 1e6 for kept in seen.values()])]
    return result


async def demo(plan: Plan) -> report.Report:
    """Measure with the demo model, whose steps take milliseconds."""
    return await measure("telemetry", f"{PROGRAMS} programs on the demo model", DEMO_MODEL, [], plan)


async def llama_88m(plan: Plan) -> report.Report:
    """Measure with the model of `bench overhead`."""
    import torch

    from bench.product.worker import LLAMA_88M, random_checkpoint

    scratch = Path(tempfile.mkdtemp(prefix="tt-"))
    try:
        checkpoint = scratch / "llama-88m"
        random_checkpoint(checkpoint, LLAMA_88M, dtype=torch.bfloat16)
        shutil.copy(DEMO_MODEL / "tokenizer.json", checkpoint)
        title = f"{PROGRAMS} programs on the 88M model"
        worker = ["--dtype", "bfloat16"]
        return await measure("telemetry-88m", title, checkpoint, worker, plan)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


MODELS = {"demo": demo, "88m": llama_88m}


def _even(text: str) -> int:
    if (starts := report.positive(text)) % 2:
        raise argparse.ArgumentTypeError(f"{starts} is odd: as many starts have the one stack first as the other")
    return starts


async def _all(args: argparse.Namespace) -> list[report.Report]:
    plan = Plan(args.starts, args.repeat, (OFF, ON, ALL) if args.every_step else (OFF, ON))
    return [await MODELS[name](plan) for name in args.models]


def main() -> int:
    """Run the command line."""
    parser = report.parser("telemetry", __doc__, repeat=1)
    parser.add_argument(
        "--models", nargs="+", choices=MODELS, default=list(MODELS), help="measured one after the other (default: both)"
    )
    parser.add_argument("--every-step", action="store_true", help="also with a span for every step")
    parser.add_argument(
        "--starts",
        type=_even,
        default=10,
        metavar="N",
        help="the stacks are started so often; an even number (default %(default)s)",
    )
    args = parser.parse_args()
    install_uvloop()
    return report.emit(asyncio.run(_all(args)), args)


if __name__ == "__main__":
    sys.exit(main())
