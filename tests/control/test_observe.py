from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tartlet_common import telemetry
from tartlet_common import telemetry_names as names
from tartlet_control.observe import Observer
from tests.control.harness import Host, decode_text


def test_steps_link_to_their_programs_and_reach_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "tracer", lambda: provider.get_tracer("test"))
    host = Host()
    Observer(host.core).attach(traced=True)
    with provider.get_tracer("runtime").start_as_current_span("runtime") as root:
        carrier = tuple(telemetry.inject().items())
    guests = [host.start(trace=carrier) for _ in range(2)]
    for guest in guests:
        decode_text(guest, [5, 6], 2)
    host.run()
    for guest in guests:
        host.end(guest)
    spans = exporter.get_finished_spans()
    programs = [s for s in spans if s.name == names.SPAN_CONTROL_PROGRAM]
    steps = [s for s in spans if s.name == names.SPAN_BATCH]
    assert len(programs) == 2
    trace_id = root.get_span_context().trace_id
    assert {s.context.trace_id for s in [*programs, *steps]} == {trace_id}
    assert {link.context.span_id for link in steps[0].links} == {p.context.span_id for p in programs}
    assert all(trace.format_span_id(s.context.span_id) in host.steps[i].traceparent for i, s in enumerate(steps))
    assert programs[0].attributes is not None
    assert programs[0].attributes[names.ATTR_OUTPUT_TOKENS] == 2


@pytest.mark.parametrize("metrics", [False, True])
def test_without_tracing_steps_carry_nothing(metrics: bool) -> None:
    host = Host()
    if metrics:
        Observer(host.core).attach(traced=False)
    guest = host.start()
    decode_text(guest, [5, 6], 2)
    host.run()
    host.end(guest)
    assert {s.traceparent for s in host.steps} == {""}
