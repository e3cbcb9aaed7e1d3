from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from opentelemetry.trace import format_span_id

from tartlet_common.abi import Op
from tartlet_common.errors.registry import WorkerLost
from tartlet_common.telemetry import names, telemetry
from tartlet_common.telemetry.steps import StepTracer
from tartlet_control.batching.step_times import StepTimes
from tartlet_control.core.places.backlog import waiting_s
from tartlet_control.serving import observe
from tartlet_control.serving.observe import Observer
from tests.control.harness import Guest, Host, decode_text


class Traced:
    """A host whose core reports spans and metrics here."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, sampler: Sampler = ALWAYS_ON, *, inline: bool = True, **settings: Any
    ) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        processor = SimpleSpanProcessor(self._exporter)
        self.provider = TracerProvider(sampler)
        self.provider.add_span_processor(processor)
        meters = MeterProvider([self._reader])
        monkeypatch.setattr(telemetry, "tracer", lambda: self.provider.get_tracer("test"))
        monkeypatch.setattr(telemetry, "meter", lambda: meters.get_meter("test"))
        if inline:
            monkeypatch.setattr(telemetry, "later", lambda call, *args: call(*args))
        monkeypatch.setattr(telemetry, "step_tracer", lambda: StepTracer(processor, Resource({})))
        self.host = Host(**settings)
        Observer(self.host.core).attach(traced=True)

    def decode(self, tokens: int, guests: int = 1, *, carrier: Sequence[tuple[str, str]] = ()) -> None:
        started: list[Guest] = [self.host.start(trace=tuple(carrier)) for _ in range(guests)]
        for guest in started:
            decode_text(guest, [5, 6], tokens, ahead=False)
        self.host.run()
        for guest in started:
            self.host.end(guest)

    def spans(self, name: str) -> list[ReadableSpan]:
        return [s for s in self._exporter.get_finished_spans() if s.name == name]

    def metric(self, name: str) -> list[Any]:
        data = self._reader.get_metrics_data()
        assert data is not None
        every = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics]
        return [point for m in every if m.name == name for point in m.data.data_points]


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Traced]:
    return lambda *args, **settings: Traced(monkeypatch, *args, **settings)


def test_steps_link_to_their_programs_and_reach_the_worker(traced: Callable[..., Traced]) -> None:
    t = traced()
    with t.provider.get_tracer("runtime").start_as_current_span("runtime") as root:
        carrier = tuple(telemetry.inject().items())
    t.decode(2, guests=2, carrier=carrier)
    programs, steps = t.spans(names.SPAN_CONTROL_PROGRAM), t.spans(names.SPAN_BATCH)
    assert len(programs) == 2
    trace_id = root.get_span_context().trace_id
    assert {s.context.trace_id for s in [*programs, *steps] if s.context} == {trace_id}
    ids = {p.context.span_id for p in programs if p.context}
    both = [s for s in steps if {link.context.span_id for link in s.links} == ids]
    assert both, "the programs ran side by side"
    assert all(s.parent is not None and s.parent.span_id in ids for s in steps)
    sent = [format_span_id(s.context.span_id) for s in steps if s.context]
    assert [span_id for span_id, step in zip(sent, t.host.steps, strict=True) if span_id not in step.traceparent] == []
    assert programs[0].attributes is not None
    assert programs[0].attributes[names.ATTR_OUTPUT_TOKENS] == 2
    told: list[Any] = [s.attributes for s in steps]
    assert all(a[names.ATTR_STEP_COMMANDS] > 0 for a in told)
    assert sum(a[names.ATTR_STEP_TOKENS] for a in told) == 2 * (2 + 1)


def test_beyond_the_limit_steps_are_counted_but_have_no_span(traced: Callable[..., Traced]) -> None:
    t = traced(step_spans_per_s=3)
    t.decode(20)
    sent = [s for s in t.host.steps if s.batches]
    assert len(sent) > 10
    assert len(t.spans(names.SPAN_BATCH)) == 3, "the clock of the test stands still"
    assert [bool(s.traceparent) for s in sent] == [True] * 3 + [False] * (len(sent) - 3)
    assert [p.value for p in t.metric(names.METRIC_STEP_SPANS_LEFT_OUT)] == [len(sent) - 3]
    assert sum(p.count for p in t.metric(names.METRIC_STEP_DURATION)) == len(sent), "metrics are complete"
    t.host.clock.advance(1.0)
    t.decode(5)
    assert len(t.spans(names.SPAN_BATCH)) == 6


def test_a_slow_step_has_a_span_beyond_the_limit(traced: Callable[..., Traced]) -> None:
    t = traced(step_spans_per_s=4)
    t.decode(20)
    assert len(t.spans(names.SPAN_BATCH)) == 4
    guest = t.host.start()
    decode_text(guest, [5, 6], 1)
    t.host.pump()
    t.host.clock.advance(0.2)
    assert t.host.answer()
    slow = t.spans(names.SPAN_BATCH)[-1]
    assert len(t.spans(names.SPAN_BATCH)) == 5
    assert slow.end_time is not None
    assert slow.start_time is not None
    assert slow.end_time - slow.start_time == pytest.approx(200_000_000, rel=1e-6)
    assert t.host.steps[-1].traceparent == "", "it showed only at its end"


@pytest.mark.parametrize("how", ["well", "failed", "killed", "poisoned", "poisoned and failed"])
def test_how_a_program_ended_is_in_its_span_and_counted(traced: Callable[..., Traced], how: str) -> None:
    t = traced()
    guest = t.host.start()
    if "poisoned" in how:
        guest.alloc(Op.ALLOC_KVPAGE, range(65), wait=True)  # of 64
    else:
        decode_text(guest, [5, 6], 2)
    t.host.run()
    if how == "killed":
        program = next(iter(t.host.core.lifecycle.programs.values()))
        t.host.core.lifecycle.kill(program, WorkerLost(engine="worker-0"))
    t.host.end(guest, failed="failed" in how)
    t.host.run()
    told = {"well": None, "failed": "_OTHER", "killed": "WorkerLost"}.get(how, "ProgramTooLarge")
    (span,) = t.spans(names.SPAN_CONTROL_PROGRAM)
    assert span.attributes is not None
    assert span.attributes.get(names.ATTR_ERROR) == told
    assert span.status.is_unset is (told is None)
    (ended,) = t.metric(names.METRIC_PROGRAMS_ENDED)
    assert (ended.value, ended.attributes.get(names.ATTR_ERROR)) == (1, told)


def test_no_limit_but_none_at_all(traced: Callable[..., Traced]) -> None:
    t = traced(step_spans_per_s=0)
    t.decode(3)
    assert len(t.spans(names.SPAN_CONTROL_PROGRAM)) == 1
    assert t.spans(names.SPAN_BATCH) == []
    assert {s.traceparent for s in t.host.steps} == {""}


def test_steps_of_programs_that_are_not_sampled_have_no_spans(traced: Callable[..., Traced]) -> None:
    t = traced(ALWAYS_OFF)
    t.decode(3)
    assert t.spans(names.SPAN_BATCH) == []
    assert {s.traceparent for s in t.host.steps} == {""}
    assert [p.value for p in t.metric(names.METRIC_STEP_SPANS_LEFT_OUT)] == [0]


def test_what_was_only_noted_is_in_what_is_collected(traced: Callable[..., Traced]) -> None:
    t = traced(inline=False, step_spans_per_s=3)
    for _ in range(20):
        t.decode(5, guests=2)
        steps = len([s for s in t.host.steps if s.batches])
        assert sum(p.count for p in t.metric(names.METRIC_STEP_DURATION)) == steps
        assert [p.value for p in t.metric(names.METRIC_STEP_SPANS_LEFT_OUT)] == [steps - 3]


@pytest.mark.parametrize("scraped", [False, True])
def test_without_tracing_steps_carry_nothing(scraped: bool) -> None:
    host = Host()
    if scraped:
        Observer(host.core).attach(traced=False)
    guest = host.start()
    decode_text(guest, [5, 6], 2)
    host.run()
    host.end(guest)
    assert {s.traceparent for s in host.steps} == {""}


def test_metrics_tell_only_so_many_engines_apart(
    monkeypatch: pytest.MonkeyPatch, traced: Callable[..., Traced]
) -> None:
    """Workers that are started again and again have new names, and a metric keeps each name that it ever had."""
    monkeypatch.setattr(observe, "MAX_ENGINES", 3)
    t = traced(engines=0)
    for i in range(6):
        state = t.host.join(f"worker-{i}")
        t.decode(2)
        t.host.core.on_engine_gone(state)
    seen = {p.attributes[names.ATTR_ENGINE_ID]: p.count for p in t.metric(names.METRIC_STEP_DURATION)}
    assert sorted(seen) == [observe.OTHER_ENGINES, "worker-0", "worker-1", "worker-2"]
    assert seen[observe.OTHER_ENGINES] == 3 * seen["worker-0"]
    for name in ("worker-0", "worker-7", "worker-8"):
        t.host.join(name)
    free = {p.attributes[names.ATTR_ENGINE_ID]: p.value for p in t.metric(names.METRIC_PAGES_FREE)}
    assert free == {"worker-0": 64, observe.OTHER_ENGINES: 2 * 64}


def test_work_that_waits_is_measured_in_device_time_by_pool(traced: Callable[..., Traced]) -> None:
    t = traced(steps_in_flight=1)
    t.decode(3)
    engine = t.host.engine
    t.host.batcher.times = StepTimes()
    for tokens in (1, 64):
        t.host.batcher.times.add(tokens, 0.01 + 0.001 * tokens)

    def told(name: str) -> list[float]:
        return [p.value for p in t.metric(name) if p.attributes[names.ATTR_MODEL] == engine.spec.model]

    assert told(names.METRIC_WORK_WAITING) == [0.0]
    for busy in (True, False, False):
        decode_text(t.host.start(), [*range(5, 25)], 1, ahead=False)
        t.host.pump()
        assert bool(t.host.batcher.waiting) != busy, "a step is in flight"
    assert told(names.METRIC_WORK_PROGRAMS) == [3]
    (waiting_s,) = told(names.METRIC_WORK_WAITING)
    assert waiting_s == pytest.approx(0.01 + 0.001 * 40, rel=0.1)  # two prompts of 20 tokens in one step
    t.host.run()
    assert told(names.METRIC_WORK_WAITING) == [0.0]
    assert told(names.METRIC_WORK_PROGRAMS) == [3]


class Moving:
    """A suspended place of which everything changes while another thread looks at it."""

    def __init__(self, engine: object) -> None:
        self.model = SimpleNamespace(engines=[engine])
        self.kept_on = None
        self.program = SimpleNamespace(queues={})
        self.queues = self.program.queues
        self.queues[0] = self
        self.recoveries: list[object] = [SimpleNamespace(need=(2, 0, 0))]
        self.pending: tuple[()] = ()

    @property
    def place(self) -> Moving:
        self.queues[len(self.queues)] = SimpleNamespace(place=None)
        return self

    @property
    def recovery(self) -> object:
        return self.recoveries.pop() if self.recoveries else None


def test_what_waits_is_read_from_another_thread_while_it_changes() -> None:
    engine: Any = SimpleNamespace(spec=SimpleNamespace(page_size=16))
    batcher: Any = SimpleNamespace(waiting_s=1.0, work_s=lambda tokens: tokens / 100)
    suspended: Any = [Moving(engine)]
    assert waiting_s(engine, batcher, {}, suspended) == 1.0 + 0.32
