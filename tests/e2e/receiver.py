"""A receiver of traces and metrics for tests of what real processes export."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


class Receiver(trace_service_pb2_grpc.TraceServiceServicer, metrics_service_pb2_grpc.MetricsServiceServicer):
    """An OTLP receiver that keeps everything it gets."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.spans: list[tuple[str, Any]] = []  # service, span
        self.metrics: dict[str, set[str]] = {}  # service, names
        self.models: set[str] = set()  # names in metrics
        self.raw: list[bytes] = []  # requests in the order of arrival

    def Export(self, request: Any, context: Any) -> Any:
        with self.lock:
            self.raw.append(request.SerializeToString())
            if isinstance(request, metrics_service_pb2.ExportMetricsServiceRequest):
                for resource in request.resource_metrics:
                    metrics = [m for scope in resource.scope_metrics for m in scope.metrics]
                    self.metrics.setdefault(_service(resource), set()).update(m.name for m in metrics)
                    points = [p for m in metrics for p in m.histogram.data_points]
                    self.models |= {attributes(p).get("gen_ai.request.model", "") for p in points}
                return metrics_service_pb2.ExportMetricsServiceResponse()
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    self.spans += [(_service(resource), span) for span in scope.spans]
            return trace_service_pb2.ExportTraceServiceResponse()


def _service(resource: Any) -> str:
    return str(attributes(resource.resource)["service.name"])


def attributes(told: Any) -> dict[str, Any]:
    """Returns the attributes of a span, an event, a point or a resource, by name."""
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in told.attributes}


@contextlib.contextmanager
def receiving() -> Iterator[tuple[Receiver, str]]:
    """Runs a receiver; yields it and its endpoint."""
    kept = Receiver()
    server = grpc.server(futures.ThreadPoolExecutor(4))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(kept, server)  # type: ignore[no-untyped-call]
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(kept, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield kept, f"http://127.0.0.1:{port}"
    finally:
        server.stop(0).wait()
