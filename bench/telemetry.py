"""What telemetry costs: tokens a second with export on over export off, paired.

Two stacks on the same model run side by side, one without telemetry and one that exports as it does by default; with
`--every-step` also one whose every step has a span. 32 core-Wasm programs of 64 tokens go to the one, then to the
other, in turn, the order alternating; a round is some seconds of that, and its ratio is of sums. The receiver is a
process of its own with the lowest priority, which reads what it is sent and decodes nothing: in life it is on another
machine. Spans are sent every second, not every five, so that a round pays for what it caused.

Two models: the demo model, whose steps take milliseconds, and the 88M model of `bench overhead`.
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
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import tartlet
from bench import report
from bench.batching import DEMO_MODEL, tokens_per_s
from bench.guests.build import build
from bench.stack import running_stack
from tartlet.local import LocalStack
from tartlet_common.rpc import install_uvloop

PROGRAMS: Final = 32
TOKENS: Final = 64
AT_LEAST: Final = 0.98
OFF, ON, ALL = "off", "on", "on, every step"
WORTH_S: Final = 1.5
"""Seconds that a stack is measured for in a round: as many launches of all programs as that takes."""
ROLES: Final = ("control", "runtime", "worker")
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Received:
    """What the receiver has seen."""

    requests: int
    num_bytes: int
    cpu_s: float


class Receiver:
    """An OTLP receiver in a process of its own."""

    def __init__(self, endpoint: str, pipe: Connection) -> None:
        self.endpoint = endpoint
        self._pipe = pipe

    def received(self) -> Received:
        """Until now."""
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
    """A running receiver."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_receive, args=(theirs,), daemon=True)
    process.start()
    try:
        yield Receiver(f"http://127.0.0.1:{ours.recv()}", ours)
    finally:
        process.kill()
        process.join()


class Side:
    """One of the stacks that are compared."""

    def __init__(self, stack: LocalStack, client: tartlet.AsyncClient) -> None:
        self._stack = stack
        self._client = client
        self.speeds: list[float] = []  # tokens/s, one a round
        self.cpu_s: list[float] = []  # CPU seconds of all its processes a token, one a round

    async def launch(self, guest: tartlet.Source) -> float:
        """Run all programs once; tokens a second."""
        return await tokens_per_s(self._client, guest, PROGRAMS, TOKENS)

    def took(self, launches: int, took_s: float, cpu_s: float) -> None:
        """A round has ended."""
        tokens = launches * PROGRAMS * TOKENS
        self.speeds.append(tokens / took_s)
        self.cpu_s.append(cpu_s / tokens)

    def used_s(self) -> float:
        """CPU seconds of its processes until now."""
        return sum(_cpu_s(self._stack.pid(role)) for role in ROLES)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


@asynccontextmanager
async def sides(
    model: Path, worker: Sequence[str], endpoint: str, *, every_step: bool
) -> AsyncIterator[dict[str, Side]]:
    """The stacks, up and connected."""
    export = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "1000"}
    kinds: dict[str, tuple[Mapping[str, str], Sequence[str]]] = {
        OFF: ({}, ()),
        ON: (export, ()),
    }
    if every_step:
        kinds[ALL] = export, ("--step-spans-per-s", "1000000")
    async with AsyncExitStack() as stacks:
        found = {}
        for name, (env, control) in kinds.items():
            flags = {"worker": worker, "control": control}
            stack = await stacks.enter_async_context(running_stack(model=model, flags=flags, env=env))
            found[name] = Side(stack, await stacks.enter_async_context(tartlet.AsyncClient(stack.address)))
        yield found


async def _round(guest: tartlet.Source, order: list[Side], launches: int) -> None:
    before = [side.used_s() for side in order]
    took = dict.fromkeys(order, 0.0)
    for i in range(launches):
        for side in order if i % 2 else order[::-1]:
            took[side] += PROGRAMS * TOKENS / await side.launch(guest)
    for side, used_s in zip(order, before, strict=True):
        side.took(launches, took[side], side.used_s() - used_s)


async def measure(
    name: str, title: str, model: Path, worker: Sequence[str], repeat: int, *, every_step: bool
) -> report.Report:
    """One model's table."""
    with receiving() as receiver, tempfile.TemporaryDirectory(prefix="tt-") as directory:
        guest = tartlet.Source.from_file(build(Path(directory))["decode"])
        async with sides(model, worker, receiver.endpoint, every_step=every_step) as compared:
            speeds = [await side.launch(guest) for side in compared.values() for _ in range(2)]  # warms up
            launches = 2 * max(1, round(WORTH_S * max(speeds) / (PROGRAMS * TOKENS) / 2))
            before, start = receiver.received(), time.perf_counter()
            for i in range(repeat):
                await _round(guest, list(compared.values()), launches)
                told = ", ".join(f"{key} {side.speeds[-1]:.0f}" for key, side in compared.items())
                report.progress(f"{name}: round {i + 1} of {repeat}, tokens/s: {told}")
            after, took_s = receiver.received(), time.perf_counter() - start
    columns = ["export", "tokens/s", "of off", "CPU us a token", "of off"]
    result = report.Report(name, f"Telemetry, {title}", columns, y_label="tokens/s")
    off = compared[OFF]
    for key, side in compared.items():
        speed = report.median([a / b for a, b in zip(side.speeds, off.speeds, strict=True)])
        cpu = report.median([a / b for a, b in zip(side.cpu_s, off.cpu_s, strict=True)])
        result.rows.append((key, report.median(side.speeds), speed, report.median(side.cpu_s) * 1e6, cpu))
        if key == ON:
            result.goals = [report.Goal(f"on over off, {model.name}", speed, AT_LEAST, at_least=True)]
    kb_s, busy = (after.num_bytes - before.num_bytes) / took_s / 1e3, (after.cpu_s - before.cpu_s) / took_s
    requests_s = (after.requests - before.requests) / took_s
    result.notes = [
        f"{repeat} rounds of {launches} times {PROGRAMS} programs of {TOKENS} tokens on each stack",
        f"the receiver: {kb_s:.1f} kB/s in {requests_s:.1f} requests/s, {busy:.2%} of a core",
    ]
    result.series = [report.Series("tokens/s", list(compared), [report.median(s.speeds) for s in compared.values()])]
    return result


async def demo(repeat: int, *, every_step: bool) -> report.Report:
    """Steps of milliseconds."""
    title = f"{PROGRAMS} programs on the demo model"
    return await measure("telemetry", title, DEMO_MODEL, [], repeat, every_step=every_step)


async def llama_88m(repeat: int, *, every_step: bool) -> report.Report:
    """The model of `bench overhead`."""
    import torch

    from tartlet_worker.random_checkpoint import LLAMA_88M, random_checkpoint

    scratch = Path(tempfile.mkdtemp(prefix="tt-"))
    try:
        checkpoint = scratch / "llama-88m"
        random_checkpoint(checkpoint, LLAMA_88M, dtype=torch.bfloat16)
        shutil.copy(DEMO_MODEL / "tokenizer.json", checkpoint)
        title = f"{PROGRAMS} programs on the 88M model"
        worker = ["--dtype", "bfloat16"]
        return await measure("telemetry-88m", title, checkpoint, worker, repeat, every_step=every_step)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


MODELS = {"demo": demo, "88m": llama_88m}


async def _all(args: argparse.Namespace) -> list[report.Report]:
    return [await MODELS[name](args.repeat, every_step=args.every_step) for name in args.models]


def main() -> int:
    """Command line."""
    parser = report.parser(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="default: both")
    parser.add_argument("--every-step", action="store_true", help="also with a span for every step")
    parser.set_defaults(repeat=12)
    args = parser.parse_args()
    install_uvloop()
    return report.emit(asyncio.run(_all(args)), args)


if __name__ == "__main__":
    sys.exit(main())
