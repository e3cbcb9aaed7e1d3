"""Sets up OpenTelemetry for a process. Unless OTEL_EXPORTER_OTLP_ENDPOINT is set, telemetry is off and free."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from opentelemetry import metrics, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tartlet_common.errors.registry import InvalidConfig
from tartlet_common.telemetry import names
from tartlet_common.telemetry.later import Later

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import Histogram, Meter
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.trace import Span, Tracer

    from tartlet_common.telemetry.export import Leaving
    from tartlet_common.telemetry.steps import StepTracer

_SCOPE = "tartlet"
_COMPRESSION = "OTEL_EXPORTER_OTLP_COMPRESSION"
_W3C = TraceContextTextMapPropagator()  # between roles, whatever OTEL_PROPAGATORS says
_steps: StepTracer | None = None
_exporters: list[Leaving] = []
_later = Later()
later = _later.put
"""Queues a call of OpenTelemetry from a hot path (see `later`)."""
flush = _later.flush
"""Makes the queued calls now: before metrics are collected, and at the end of the process."""


def enabled() -> bool:
    """Whether telemetry is exported; hot paths ask once at their start and skip spans if not."""
    return bool(os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"))


def setup(role: str, *, scraped: bool = False) -> None:
    """Export traces and metrics of this process as service `tartlet-<role>`; do nothing if telemetry is off.

    With `scraped`, metrics are also collected for `/metrics`, whether or not an OTLP endpoint is set.

    Raises:
        InvalidConfig: an `OTEL_*` variable has an invalid value.
    """
    if not (enabled() or scraped):
        return
    if os.environ.get(_COMPRESSION, "").lower() == "none":
        del os.environ[_COMPRESSION]  # "none" is the default, but the SDK doesn't know the word
    try:
        _setup(role, scraped=scraped)
    except Exception as e:  # the SDK raises errors of several types
        remedy = "Correct the OTEL_* variable of the environment that it speaks of, or unset it."
        raise InvalidConfig(role="telemetry", detail=f"the environment: {e}", remedy=remedy) from e


def _setup(role: str, *, scraped: bool) -> None:
    # imported here: importing the SDK takes 100 ms, which a process without telemetry saves
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource

    resource = Resource.create({"service.name": f"tartlet-{role}", "service.namespace": "tartlet"})
    readers = _readers(scraped=scraped)
    # the SDK's flush at exit has no time limit; `shutdown` below has one
    metrics.set_meter_provider(MeterProvider(resource=resource, metric_readers=readers, shutdown_on_exit=False))
    if enabled():
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from tartlet_common.telemetry.export import SpanExporter
        from tartlet_common.telemetry.steps import StepTracer

        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = SpanExporter()
        _exporters.append(exporter)
        processor = BatchSpanProcessor(exporter)
        provider.add_span_processor(processor)
        trace.set_tracer_provider(provider)
        global _steps  # noqa: PLW0603 - one for the process, like the providers
        _steps = StepTracer(processor, resource)


def _readers(*, scraped: bool) -> list[MetricReader]:
    readers: list[MetricReader] = []
    if scraped:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader

        readers.append(PrometheusMetricReader())
    if enabled():
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        from tartlet_common.telemetry.export import MetricExporter

        exporter = MetricExporter()
        _exporters.append(exporter)
        readers.append(PeriodicExportingMetricReader(exporter))
    return readers


def shutdown(grace_s: float = 2.0) -> None:
    """Flush buffered telemetry; call this once, at the end of a process.

    A receiver that is gone delays the end by at most `export.LEAVING_S`, a slow receiver by at most `grace_s`.
    """
    for exporter in _exporters:
        exporter.leave()
    providers = (trace.get_tracer_provider(), metrics.get_meter_provider())
    flushing = [threading.Thread(target=_stop, args=(p,), name="telemetry", daemon=True) for p in providers]
    for thread in flushing:
        thread.start()
    end = time.monotonic() + grace_s
    for thread in flushing:
        thread.join(max(0.0, end - time.monotonic()))


def _stop(provider: object) -> None:
    flush()
    end = getattr(provider, "shutdown", None)
    if end is not None:
        end()


def tracer() -> Tracer:
    """Return the tracer of this process; a no-op tracer if telemetry is off."""
    return trace.get_tracer(_SCOPE)


def meter() -> Meter:
    """Return the meter of this process; a no-op meter if telemetry is off."""
    return metrics.get_meter(_SCOPE)


def histogram(name: str, unit: str = "") -> Histogram:
    """Make a histogram with the bounds that `names.BUCKETS` has for its name."""
    return meter().create_histogram(name, unit=unit, explicit_bucket_boundaries_advisory=names.BUCKETS[name])


def step_tracer() -> StepTracer | None:
    """Return the tracer of steps of this process; None if telemetry is off."""
    return _steps


def inject(context: Context | None = None) -> dict[str, str]:
    """Return the W3C trace context of the current span, or of `context`'s span, to send to a peer."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, context)
    return carrier


def extract(carrier: Mapping[str, str]) -> Context:
    """Rebuild the context that `inject` made in another process."""
    return _W3C.extract(carrier)


def trace_id(span: Span | None = None) -> str:
    """Return the trace of a span, by default of the current one, as 32 hex digits; "" outside of any trace."""
    context = (span or trace.get_current_span()).get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else ""
