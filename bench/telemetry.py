"""What telemetry costs: tokens a second with export on over export off, paired.

Two stacks on the demo model run side by side, one exporting spans and metrics to an OTLP receiver in a process of its
own; 32 core-Wasm programs of 64 tokens go to the one, then to the other, in turn.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import tempfile
from concurrent import futures
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import tartlet
from bench import report
from bench.batching import DEMO_MODEL, tokens_per_s
from bench.guests.build import build
from bench.stack import running
from tartlet_common.rpc import install_uvloop

PROGRAMS, TOKENS = 32, 64
AT_LEAST = 0.98


def _receive(port: Connection) -> None:
    import grpc
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as traces_grpc

    class Traces(traces_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC calls it so
            return traces.ExportTraceServiceResponse()

    class Metrics(metrics_grpc.MetricsServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC calls it so
            return metrics.ExportMetricsServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(2))
    traces_grpc.add_TraceServiceServicer_to_server(Traces(), server)  # type: ignore[no-untyped-call]
    metrics_grpc.add_MetricsServiceServicer_to_server(Metrics(), server)  # type: ignore[no-untyped-call]
    port.send(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    server.wait_for_termination()


async def measure(repeat: int) -> report.Report:
    """One table."""
    ours, theirs = multiprocessing.Pipe()
    receiver = multiprocessing.get_context("spawn").Process(target=_receive, args=(theirs,), daemon=True)
    receiver.start()
    endpoint = f"http://127.0.0.1:{ours.recv()}"
    seen: dict[str, list[float]] = {"off": [], "on": []}
    try:
        with tempfile.TemporaryDirectory(prefix="tt-") as directory:
            guest = tartlet.Source.from_file(build(Path(directory))["decode"])
            async with (
                running(model=DEMO_MODEL) as off,
                running(model=DEMO_MODEL, env={"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}) as on,
                tartlet.AsyncClient(off) as client_off,
                tartlet.AsyncClient(on) as client_on,
            ):
                for i in range(repeat + 1):  # the first round warms up
                    order = [("off", client_off), ("on", client_on)]
                    for name, client in order if i % 2 else order[::-1]:
                        speed = await tokens_per_s(client, guest, PROGRAMS, TOKENS)
                        if i:
                            seen[name].append(speed)
                    report.progress(f"telemetry: round {i} of {repeat}")
    finally:
        receiver.kill()
        receiver.join()
    ratio = report.median([on / off for on, off in zip(seen["on"], seen["off"], strict=True)])
    title = f"Telemetry, {PROGRAMS} programs of {TOKENS} tokens on the demo model"
    result = report.Report("telemetry", title, ["export", "tokens/s", "of off"], y_label="tokens/s")
    result.rows = [("off", report.median(seen["off"]), 1.0), ("on", report.median(seen["on"]), ratio)]
    result.goals = [report.Goal("on over off", ratio, AT_LEAST, at_least=True)]
    result.series = [report.Series("tokens/s", list(seen), [report.median(v) for v in seen.values()])]
    return result


def main() -> int:
    """Command line."""
    args = report.parser(__doc__).parse_args()
    install_uvloop()
    return report.emit([asyncio.run(measure(args.repeat))], args)


if __name__ == "__main__":
    sys.exit(main())
