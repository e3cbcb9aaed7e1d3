"""OpenTelemetry for every role: off, and free, unless OTEL_EXPORTER_OTLP_ENDPOINT is set."""

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
    from opentelemetry.trace import Tracer

    from tartlet_common.telemetry.export import Leaving
    from tartlet_common.telemetry.steps import StepTracer

_SCOPE = "tartlet"
_COMPRESSION = "OTEL_EXPORTER_OTLP_COMPRESSION"
_W3C = TraceContextTextMapPropagator()  # what travels between our roles, whatever OTEL_PROPAGATORS says
_steps: StepTracer | None = None
_exporters: list[Leaving] = []
_later = Later()
later = _later.put
"""Puts off what a hot path reports (`telemetry_later`)."""
flush = _later.flush
"""Makes what was put off, now: before metrics are collected, and at the end."""


def enabled() -> bool:
    """Whether anything is exported; hot paths ask once at start and skip spans when not."""
    return bool(os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"))


def setup(role: str, *, scraped: bool = False) -> None:
    """Export traces and metrics of this process as service `tartlet-<role>`; does nothing when telemetry is off.

    `scraped`: metrics are also kept for `/metrics`, whether or not an OTLP endpoint is set.

    Raises:
        InvalidConfig: an `OTEL_*` variable has a value that can't be used.
    """
    if not (enabled() or scraped):
        return
    if os.environ.get(_COMPRESSION, "").lower() == "none":
        del os.environ[_COMPRESSION]  # it is the default, by a name that the SDK doesn't know
    try:
        _setup(role, scraped=scraped)
    except Exception as e:  # the SDK has kinds of its own
        remedy = "Correct the OTEL_* variable of the environment that it speaks of, or unset it."
        raise InvalidConfig(role="telemetry", detail=f"the environment: {e}", remedy=remedy) from e


def _setup(role: str, *, scraped: bool) -> None:
    # imported here: the SDK takes 100 ms to import, which a process without telemetry needn't pay
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource

    resource = Resource.create({"service.name": f"tartlet-{role}", "service.namespace": "tartlet"})
    readers = _readers(scraped=scraped)
    # the SDK's own flush at exit has no limit: `shutdown` is ours
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
        global _steps  # noqa: PLW0603 - the process's, as the providers are
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
    """Flush what is buffered; called once at the end of a process.

    A receiver that isn't there costs at most `telemetry_export.LEAVING_S`, one that is slow at most `grace_s`.
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
    """The tracer of this process (a no-op one when telemetry is off)."""
    return trace.get_tracer(_SCOPE)


def meter() -> Meter:
    """The meter of this process (a no-op one when telemetry is off)."""
    return metrics.get_meter(_SCOPE)


def histogram(name: str, unit: str = "") -> Histogram:
    """A histogram of this process with the bounds that `telemetry_names` has for its name."""
    return meter().create_histogram(name, unit=unit, explicit_bucket_boundaries_advisory=names.BUCKETS[name])


def step_tracer() -> StepTracer | None:
    """What makes spans of steps in this process; None when telemetry is off."""
    return _steps


def inject(context: Context | None = None) -> dict[str, str]:
    """The current span, or that of `context`, as W3C trace context, to send along."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, context)
    return carrier


def extract(carrier: Mapping[str, str]) -> Context:
    """The context that `inject` made in another process."""
    return _W3C.extract(carrier)
