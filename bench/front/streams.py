"""2,000 idle streams attached to 20 runs and 200 active ones: memory a stream, and how long an event is late.

The streams are those of `GET /v1/programs/ID/events`. Idle runs wait for a message; active ones send a text at even
distances, which each of their streams gets. The memory is how much the gateway's resident set, and the runtime's, grew
for the idle streams. A stall is the time between two events of a stream beyond their distance. Clients over gRPC, one a
run, read the same runs beside: what they see as well isn't the gateway's.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import time
from collections.abc import Sequence
from typing import Final

import numpy as np
import psutil

import tartlet
from bench.front.wire import Connections, connections, request
from bench.harness import report
from bench.harness.stack import free_ports, running_stack
from bench.product.common import install_uvloop

RUNS: Final = 20
IDLE: Final = 2000
ACTIVE: Final = 200
EVERY_S: Final = 0.2
GOAL_MS: Final = 50.0
_WAITS: Final = "from inferlet import receive\n\n\nasync def main():\n    await receive()\n"
_SENDS: Final = """import asyncio

from inferlet import receive, send


async def main(args):
    await receive()
    for i in range(int(args[0])):
        await asyncio.sleep(float(args[1]))
        send(str(i))
"""
_OPENED_AT_ONCE: Final = 50
_SETTLE_S: Final = 3.0


async def _open(gateway: Connections, program_id: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a stream of a program's events, up to the reply's head."""
    reader, writer = await gateway.open()
    writer.write(request("GET", f"/v1/programs/{program_id}/events", gateway.port))
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(head.decode())
    return reader, writer


async def _open_all(
    gateway: Connections, ids: Sequence[str], count: int
) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    opening = asyncio.Semaphore(_OPENED_AT_ONCE)

    async def one(i: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with opening:
            return await _open(gateway, ids[i % len(ids)])

    return await asyncio.gather(*(one(i) for i in range(count)))


async def _http_gaps(reader: asyncio.StreamReader) -> list[float]:
    """Read a stream to its end; seconds between its messages."""
    at: list[float] = []
    while part := await reader.read(1 << 16):
        at += [time.perf_counter()] * part.count(b"event: message\n")
        if b"event: ended\n" in part:
            break
    return np.diff(at).tolist()


async def _grpc_gaps(client: tartlet.AsyncClient, program_id: str) -> list[float]:
    at = [time.perf_counter() async for event in await client.attach(program_id) if isinstance(event, tartlet.Message)]
    return np.diff(at).tolist()


async def measure(args: argparse.Namespace) -> report.Report:
    """Make the table."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    (port,) = free_ports(1)
    flags = {"runtime": ["--capacity", "2000"]}  # streams of a runtime are bounded by twice its capacity
    async with (
        running_stack(engine="fake", flags=flags, http=f"127.0.0.1:{port}") as stack,
        tartlet.AsyncClient(stack.address) as client,
        connections(port) as gateway,
    ):
        waits = [tartlet.LaunchSpec(source=tartlet.Source.python(_WAITS))] * RUNS
        count = str(round(args.seconds / EVERY_S))
        sends = [tartlet.LaunchSpec(source=tartlet.Source.python(_SENDS), args=[count, str(EVERY_S)])] * RUNS
        ids = [_id(a) for a in await client.launch_many([*waits, *sends])]
        quiet, active = ids[:RUNS], ids[RUNS:]
        warm = await _open_all(gateway, quiet, RUNS)  # code and buffers that all streams share
        await asyncio.sleep(_SETTLE_S)
        processes = {role: psutil.Process(stack.pid(role)) for role in ("gateway", "runtime")}
        before = {role: p.memory_info().rss for role, p in processes.items()}
        report.progress(f"streams: opening {IDLE}")
        idle = await _open_all(gateway, quiet, IDLE)
        await asyncio.sleep(_SETTLE_S)
        grown = {role: (p.memory_info().rss - before[role]) / IDLE / 1e3 for role, p in processes.items()}
        streams = await _open_all(gateway, active, ACTIVE)
        reading = [asyncio.create_task(_http_gaps(reader)) for reader, _ in streams]
        beside = [asyncio.create_task(_grpc_gaps(client, program_id)) for program_id in active]
        await asyncio.sleep(1.0)
        cpu = sum(processes["gateway"].cpu_times()[:2])
        await client.send_many([(program_id, b"go") for program_id in active])
        ours = np.concatenate(await asyncio.gather(*reading)) - EVERY_S
        theirs = np.concatenate(await asyncio.gather(*beside)) - EVERY_S
        cpu = (sum(processes["gateway"].cpu_times()[:2]) - cpu) / max(1, len(ours) + len(streams))
        for _, writer in (*warm, *idle, *streams):
            writer.close()
    columns = [
        "streams",
        "kB each, gateway",
        "kB each, runtime",
        "events",
        "late p50, ms",
        "late p99, ms",
        "longest, ms",
    ]
    result = report.Report("gateway-streams", "Gateway: open streams", columns)
    result.rows.append((f"{IDLE} idle, of {RUNS} runs", grown["gateway"], grown["runtime"], "", "", "", ""))
    for label, late in ((f"{ACTIVE} active, of {RUNS} runs", ours), (f"{RUNS} over gRPC, of the same runs", theirs)):
        quantiles = [float(np.quantile(late, share)) * 1e3 for share in (0.5, 0.99, 1.0)]
        result.rows.append((label, "", "", len(late), *quantiles))
    result.goals.append(
        report.Goal(
            f"{ACTIVE} active beside {IDLE} idle, longest stall, ms", float(ours.max()) * 1e3, GOAL_MS, at_least=False
        )
    )
    result.notes.append(
        f"each active run sends every {EVERY_S} s; an event takes the gateway {cpu * 1e6:.0f} us of CPU time"
    )
    return result


def _id(answer: tartlet.Accepted | tartlet.TartletError) -> str:
    if isinstance(answer, tartlet.TartletError):
        raise answer
    return answer.program_id


def main() -> int:
    """Run the command line."""
    parser = report.parser("streams", __doc__, repeat=1, plots=False)
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S", help="that runs send (%(default)s)")
    args = parser.parse_args()
    install_uvloop()
    return report.emit([asyncio.run(measure(args))], args)


if __name__ == "__main__":
    sys.exit(main())
