from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, TraceFlags, TraceState

from tartlet_common.errors.registry import InvalidConfig
from tartlet_common.telemetry import telemetry
from tartlet_common.telemetry.export import LEAVING_S, SpanExporter, encode
from tartlet_common.telemetry.steps import Attributes, RateLimit, StepLink, StepSpan, StepTracer, traceparent

RESOURCE = Resource.create({"service.name": "tartlet-test", "service.namespace": "tartlet"})
PARENT = SpanContext(0xA1 << 96, 0xB2, is_remote=True, trace_flags=TraceFlags(1), trace_state=TraceState([("v", "1")]))
PROGRAMS = [SpanContext(0xA1 << 96, i, is_remote=i % 2 == 0, trace_flags=TraceFlags(1)) for i in range(1, 40)]
CLIENT_ONLY = "import tartlet; from tartlet_common.telemetry import telemetry; print(telemetry.inject())"


def a_step(tracer: StepTracer) -> int:
    span_id = tracer.new_id()
    attributes: Attributes = {"tartlet.engine.id": "e", "tartlet.step.tokens": 2**40, "tartlet.step.device_time": 0.25}
    tracer.record("step", span_id, PARENT, 1_500, 4_000, attributes, [StepLink(c) for c in PROGRAMS])
    return span_id


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter: InMemorySpanExporter) -> StepTracer:
    return StepTracer(SimpleSpanProcessor(exporter), RESOURCE)


def test_a_recorded_step_is_a_whole_span(tracer: StepTracer, exporter: InMemorySpanExporter) -> None:
    span_id = a_step(tracer)
    (span,) = exporter.get_finished_spans()
    assert (span.start_time, span.end_time) == (1_500, 4_000)
    assert span.parent == PARENT
    assert span.context == SpanContext(PARENT.trace_id, span_id, False, PARENT.trace_flags, PARENT.trace_state)
    assert span.context.trace_state == PARENT.trace_state
    assert [link.context for link in span.links] == PROGRAMS
    assert span.resource is RESOURCE


def test_steps_are_encoded_as_the_library_encodes_them(tracer: StepTracer, exporter: InMemorySpanExporter) -> None:
    for _ in range(3):
        a_step(tracer)
    spans = exporter.get_finished_spans()
    assert all(isinstance(s, StepSpan) for s in spans)
    assert encode(spans) == encode_spans(spans)


def test_other_spans_are_exported_beside_them(tracer: StepTracer, exporter: InMemorySpanExporter) -> None:
    provider = TracerProvider(resource=RESOURCE)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("tartlet").start_as_current_span("program") as span:
        span.add_event("something")
        a_step(tracer)
    ours = [(e.resource, s) for e in encode(exporter.get_finished_spans()).resource_spans for s in e.scope_spans]
    assert [[span.name for span in scope.spans] for _, scope in ours] == [["program"], ["step"]]
    assert {resource.SerializeToString() for resource, _ in ours} == {ours[0][0].SerializeToString()}
    assert {scope.scope.name for _, scope in ours} == {"tartlet"}


def test_encoding_lets_other_threads_in(
    tracer: StepTracer, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(100):
        a_step(tracer)
    pauses: list[float] = []
    monkeypatch.setattr("tartlet_common.telemetry.export.sleep", pauses.append)
    request: Any = SpanExporter(endpoint="http://127.0.0.1:1")._translate_data(exporter.get_finished_spans())
    assert sum(len(s.spans) for e in request.resource_spans for s in e.scope_spans) == 100
    assert len(pauses) == 3


@pytest.mark.parametrize("waiting", [False, True])
def test_a_receiver_that_is_gone_delays_the_end_of_a_process_little(
    tracer: StepTracer, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch, *, waiting: bool
) -> None:
    """The library tries for ten seconds; `waiting`: it is at that already."""
    a_step(tracer)
    ours = SpanExporter(endpoint="http://127.0.0.1:1", insecure=True)
    if waiting:
        results: list[SpanExportResult] = []
        trying = threading.Thread(target=lambda: results.append(ours.export(exporter.get_finished_spans())))
        trying.start()
        time.sleep(0.3)
        assert trying.is_alive()
    start = time.monotonic()
    ours.leave()
    if waiting:
        trying.join()
        assert results == [SpanExportResult.FAILURE]
    assert ours.export(exporter.get_finished_spans()) is SpanExportResult.FAILURE
    assert time.monotonic() - start < 3 * LEAVING_S
    monkeypatch.setattr(ours, "_translate_data", None)  # nothing more is sent
    assert ours.export(exporter.get_finished_spans()) is SpanExportResult.FAILURE


def test_a_step_costs_microseconds() -> None:
    """A hundred times what it takes; the SDK's own way with 39 links takes 100 us."""

    class Nowhere(SimpleSpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            assert span.name

    tracer = StepTracer(Nowhere(InMemorySpanExporter()), RESOURCE)
    links = [StepLink(c) for c in PROGRAMS]
    start = time.thread_time()
    for _ in range(1000):
        tracer.record("step", tracer.new_id(), PARENT, 1, 2, {"a": 1}, links)
    assert (time.thread_time() - start) / 1000 < 400e-6


def test_a_parent_comes_over_from_another_process(tracer: StepTracer) -> None:
    span_id = tracer.new_id()
    sent = traceparent(PARENT, span_id)
    got = tracer.remote(sent)
    assert got is not None
    assert (got.trace_id, got.span_id, got.trace_flags) == (PARENT.trace_id, span_id, 1)
    assert got.is_remote
    unsampled = SpanContext(PARENT.trace_id, 1, is_remote=False, trace_flags=TraceFlags(0))
    for other in ("", "x", traceparent(unsampled, 1), traceparent(PARENT, 0), sent + "0"):
        assert tracer.remote(other) is None, other


def test_the_number_of_links_is_limited_by_the_standard_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    processor = SimpleSpanProcessor(InMemorySpanExporter())
    assert StepTracer(processor, RESOURCE).max_links == 128
    monkeypatch.setenv("OTEL_SPAN_LINK_COUNT_LIMIT", "7")
    assert StepTracer(processor, RESOURCE).max_links == 7


@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_TIMEOUT=x", "OTEL_METRIC_EXPORT_INTERVAL=0"])
def test_a_variable_that_can_t_be_used_is_a_typed_error(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:1")
    monkeypatch.setenv(*variable.split("="))
    monkeypatch.setattr(telemetry, "_exporters", [])
    with pytest.raises(InvalidConfig, match="telemetry"):
        telemetry.setup("client")


def test_propagators_of_the_environment_are_not_ours() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLIENT_ONLY],
        env={**os.environ, "OTEL_PROPAGATORS": "b3"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "{}\n"


@pytest.mark.parametrize("per_s", [0.5, 1, 7, 100])
def test_a_rate_limit_lets_the_rate_through_and_a_second_at_once(per_s: float) -> None:
    limit = RateLimit(per_s)
    taken = sum(limit.take(1000 + i / 512) for i in range(512 * 60))
    assert taken == pytest.approx(per_s * 60 + max(1, per_s), abs=1.01)
    assert limit.take(2000), "after a pause"


def test_a_rate_of_nothing_lets_nothing_through() -> None:
    assert not any(RateLimit(0).take(t) for t in range(100))
