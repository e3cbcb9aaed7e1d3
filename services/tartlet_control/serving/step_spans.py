"""Decides which steps get a span, and makes the spans.

A step's span is a child of the first of its programs' spans and links to all of them. The worker's span is a child of
the step's. Each engine has a limit of spans a second. Beyond the limit, only a slow step has a span; then the worker
has none, because only the end shows that a step was slow. Programs whose traces aren't recorded are ignored.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from opentelemetry.trace import Span, SpanContext

from tartlet_common.clock import Clock
from tartlet_common.telemetry import names
from tartlet_common.telemetry.steps import Attributes, RateLimit, StepLink, StepTracer, traceparent
from tartlet_control.batching.batcher import SentStep
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.programs import Command

SLOW: Final = 4.0
"""A step is slow if it takes this multiple of its engine's usual time. With two steps in flight, twice is usual."""
SLOW_AT_LEAST_S: Final = 0.01


class ProgramSpan:
    """A program's span in control, and the parts of it that spans of steps need."""

    __slots__ = ("context", "link", "sampled", "span")

    def __init__(self, span: Span) -> None:
        self.span = span
        self.context = span.get_span_context()
        self.sampled = self.context.trace_flags.sampled
        self.link = StepLink(self.context) if self.sampled else None


class Begun(NamedTuple):
    """A step in flight whose trace is recorded."""

    parent: SpanContext
    span_id: int  # 0: the limit left it out


class Ended(NamedTuple):  # a tuple: frozen dataclasses take four times as long to make
    """The facts of a step when it is answered."""

    engine: EngineState
    sent: SentStep
    computed_tokens: int
    device_s: float
    now_s: float  # of control's clock
    end_ns: int  # since 1970

    @property
    def duration_s(self) -> float:
        """Seconds from sending the step to its answer."""
        return self.now_s - self.sent.sent_s


class StepSpans:
    """Decides on a span when a step is sent, and makes the span some time after the answer."""

    def __init__(self, tracer: StepTracer, clock: Clock, per_s: int) -> None:
        """Begin. `per_s`: spans of steps a second for each engine, and a quarter more for slow steps."""
        self._tracer = tracer
        self._clock = clock
        self._per_s = per_s
        self.left_out = 0

    def begin(self, engine: EngineState, batches: list[list[Command]]) -> tuple[Begun | None, str]:
        """Return what to keep of a step about to be sent, and its W3C traceparent for the worker ("" without one)."""
        parent = _first_sampled(batches)
        if parent is None:
            return None, ""
        if engine.step_spans is None:
            engine.step_spans = RateLimit(self._per_s), RateLimit(self._per_s / 4)
        if not engine.step_spans[0].take(self._clock.now()):
            return Begun(parent, 0), ""
        span_id = self._tracer.new_id()
        return Begun(parent, span_id), traceparent(parent, span_id)

    def make(self, ended: Ended) -> None:
        """Make the step's span, if it has one. Call this from one thread at a time, which may differ from `begin`'s."""
        engine, sent = ended.engine, ended.sent
        begun: Begun | None = sent.span
        if begun is None:
            return
        if not begun.span_id and not self._slow(ended):
            self.left_out += 1
            return
        programs = {command.queue.program: None for commands in sent.batches for command in commands}
        links = [p.span.link for p in programs if p.span is not None and p.span.sampled]
        attributes: Attributes = {
            names.ATTR_ENGINE_ID: engine.id,
            names.ATTR_MODEL: engine.spec.model,
            names.ATTR_STEP_COMMANDS: sum(map(len, sent.batches)),
            names.ATTR_STEP_TOKENS: ended.computed_tokens,
            names.ATTR_STEP_DEVICE_TIME: ended.device_s,
        }
        self._tracer.record(
            names.SPAN_BATCH,
            begun.span_id or self._tracer.new_id(),
            begun.parent,
            ended.end_ns - int(ended.duration_s * 1e9),
            ended.end_ns,
            attributes,
            links[: self._tracer.max_links],
        )

    @staticmethod
    def _slow(ended: Ended) -> bool:
        if ended.duration_s < max(SLOW_AT_LEAST_S, SLOW * ended.sent.usual_s):
            return False
        return bool(ended.engine.step_spans[1].take(ended.now_s))


def _first_sampled(batches: list[list[Command]]) -> SpanContext | None:
    for commands in batches:
        for command in commands:
            span: ProgramSpan | None = command.queue.program.span
            if span is not None and span.sampled:
                return span.context
    return None
