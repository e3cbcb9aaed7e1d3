"""What one call costs a program, 896 of them alive (Pie 7.4, Figure 10).

A core-Wasm guest times itself by the real clock: calls that the runtime answers, calls that control answers, and calls
without reply, 64 a submit. Calls to control are compared with a bare gRPC echo over the same kind of socket, measured
in the same run: an empty Python server and client that exchange 48 bytes on one open stream.

The rows "TLS" are those of a second stack, whose hops go over TCP with mutual TLS, as on a cluster. The goals are for
Unix sockets, which `tartlet serve` uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np

import tartlet
from bench.guests.build import build
from bench.harness import report
from bench.harness.intervals import median
from bench.harness.stack import connected
from bench.product.common import install_uvloop, make_channel, make_server

ECHO_BYTES = 48
ECHO_CALLS = 400
MODES = {1: "runtime answers", 2: "control answers", 3: "no reply, 64 a submit"}


async def _idle(client: tartlet.AsyncClient, guest: tartlet.Source, n: int) -> list[tartlet.Accepted]:
    """Launch `n` programs that wait for a message."""
    specs = [tartlet.LaunchSpec(source=guest, args=["--mode", "0"])] * n
    accepted = [a for a in await client.launch_many(specs) if isinstance(a, tartlet.Accepted)]
    if len(accepted) != n:
        raise RuntimeError(f"{len(accepted)} of {n} programs started")
    return accepted


async def _sampled_ns(client: tartlet.AsyncClient, guest: tartlet.Source, mode: int) -> np.ndarray:
    """Run the guest in a mode; its own samples, nanoseconds a call."""
    run = await client.run(spec=tartlet.LaunchSpec(source=guest, args=["--mode", str(mode)], durable=False))
    samples = np.zeros(0)
    async for event in run:
        if isinstance(event, tartlet.Message):
            samples = np.frombuffer(event.data, "<u4")
    if run.ended is None or not run.ended.success:
        raise RuntimeError(f"the guest failed: {run.ended}")
    return samples[len(samples) // 10 :]  # the first ones warm up


def _echo_server(address: str) -> None:
    async def echo(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        async for message in requests:
            yield message

    async def serve() -> None:
        handler = grpc.method_handlers_generic_handler("Echo", {"Talk": grpc.stream_stream_rpc_method_handler(echo)})
        server = await make_server(lambda s: s.add_generic_rpc_handlers((handler,)), address)
        await server.wait_for_termination()

    install_uvloop()
    asyncio.run(serve())


async def _echo_ns(directory: str) -> np.ndarray:
    """Measure round trips of a bare echo, nanoseconds each."""
    address = f"unix:{directory}/echo.sock"
    process = multiprocessing.get_context("spawn").Process(target=_echo_server, args=(address,), daemon=True)
    process.start()
    samples = []
    try:
        async with make_channel(address) as channel:
            await channel.channel_ready()
            stream: Any = channel.stream_stream("/Echo/Talk")()
            message = bytes(ECHO_BYTES)
            for _ in range(ECHO_CALLS):
                start = time.perf_counter_ns()
                await stream.write(message)
                await stream.read()
                samples.append(time.perf_counter_ns() - start)
            stream.cancel()
    finally:
        process.kill()
        process.join()
    return np.array(samples[len(samples) // 10 :])


async def measure(alive: int, repeat: int, *, tls: bool) -> report.Report:
    """Make one table; the two stacks take turns."""
    result = report.Report(
        "calls", f"Calls of a core-Wasm program, {alive} alive", ["call", "median us", "p99 us", "goal us"]
    )
    transports = (False, True) if tls else (False,)
    seen: dict[tuple[int, bool], list[np.ndarray]] = {(mode, t): [] for t in transports for mode in MODES}
    echoes = []
    with tempfile.TemporaryDirectory(prefix="tt-") as directory:
        guest = tartlet.Source.from_file(build(Path(directory) / "guests")["calls"])
        async with AsyncExitStack() as stacks:
            clients = {t: await stacks.enter_async_context(connected(engine="fake", tls=t)) for t in transports}
            idle = {t: await _idle(client, guest, alive - 1) for t, client in clients.items()}
            for i in range(repeat):
                report.progress(f"calls: {i + 1} of {repeat}")
                for (mode, t), samples in seen.items():
                    samples.append(await _sampled_ns(clients[t], guest, mode))
                echoes.append(await _echo_ns(directory))
            for t, client in clients.items():
                with contextlib.suppress(tartlet.TartletError):
                    await client.send_many([(a.program_id, b"end") for a in idle[t]])
    medians = {key: median([float(np.median(s)) for s in samples]) / 1e3 for key, samples in seen.items()}
    echo = median([float(np.median(s)) for s in echoes]) / 1e3
    bounds = {1: 30.0, 2: 2 * echo, 3: 1.0}
    for (mode, secured), value in medians.items():
        label = f"{MODES[mode]}, TLS" if secured else MODES[mode]
        p99 = float(np.percentile(np.concatenate(seen[mode, secured]), 99)) / 1e3
        result.rows.append((label, value, p99, "" if secured else bounds[mode]))
        if not secured:
            result.goals.append(report.Goal(f"{label}, us", value, bounds[mode], at_least=False))
    result.rows.append(("bare gRPC echo", echo, float(np.percentile(np.concatenate(echoes), 99)) / 1e3, ""))
    result.series.append(report.Series("median", [str(row[0]) for row in result.rows], [*medians.values(), echo]))
    result.y_label = "us a call"
    return result


def main() -> int:
    """Run the command line."""
    parser = report.parser("calls", __doc__)
    parser.add_argument(
        "--alive", type=report.positive, default=896, metavar="N", help="programs alive meanwhile (default %(default)s)"
    )
    parser.add_argument("--no-tls", action="store_true", help="leave out the rows over TCP with mutual TLS")
    args = parser.parse_args()
    install_uvloop()  # the echo's client has the same loop as its server
    return report.emit([asyncio.run(measure(args.alive, args.repeat, tls=not args.no_tls))], args)


if __name__ == "__main__":
    sys.exit(main())
