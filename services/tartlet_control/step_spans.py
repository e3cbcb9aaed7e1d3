"""Which steps get a span, and what is in it (contract 13).

A step's span is a child of the first of its programs' spans and links to all of them; the worker's span is a child of
the step's. An engine's steps have so many spans a second; beyond that a step has one only if it was slow, and then the
worker has none, because that shows at the end. Programs whose traces aren't recorded count as if they weren't there.
"""

from __future__ import annotations

from typing import Final

from opentelemetry.trace import Span, SpanContext

from tartlet_common import telemetry_names as names
from tartlet_common.clock import Clock
from tartlet_common.step import StepResult
from tartlet_common.telemetry_steps import Attributes, RateLimit, StepLink, StepTracer, traceparent
from tartlet_control.commands import Command
from tartlet_control.engines import EngineState, SentStep

SLOW: Final = 4.0
"""Times what its engine takes for such a step: with two in flight, the usual is up to twice."""
SLOW_AT_LEAST_S: Final = 0.01


class ProgramSpan:
    """A program's span in control, and what steps need of it."""

    __slots__ = ("context", "link", "sampled", "span")

    def __init__(self, span: Span) -> None:
        self.span = span
        self.context = span.get_span_context()
        self.sampled = self.context.trace_flags.sampled
        self.link = StepLink(self.context) if self.sampled else None


class _Begun:
    """A step on its way whose trace is recorded; `context` is None where the limit left it out."""

    __slots__ = ("context", "parent")

    def __init__(self, parent: SpanContext, context: SpanContext | None) -> None:
        self.parent = parent
        self.context = context


class StepSpans:
    """Decides when a step is sent, and has the span made when it is answered."""

    def __init__(self, tracer: StepTracer, clock: Clock, per_s: int) -> None:
        """`per_s`: spans of steps a second, for each engine; a quarter more for slow ones."""
        self._tracer = tracer
        self._clock = clock
        self._per_s = per_s
        self.left_out = 0

    def begin(self, engine: EngineState, batches: list[list[Command]]) -> tuple[_Begun | None, str]:
        """What to keep of a step about to be sent, and its W3C traceparent for the worker ("" without a span)."""
        parent = _first_sampled(batches)
        if parent is None:
            return None, ""
        if engine.step_spans is None:
            engine.step_spans = RateLimit(self._per_s), RateLimit(self._per_s / 4)
        if not engine.step_spans[0].take(self._clock.now()):
            return _Begun(parent, None), ""
        context = self._tracer.child(parent)
        return _Begun(parent, context), traceparent(context)

    def end(self, engine: EngineState, sent: SentStep, result: StepResult, now: float) -> None:
        """The step was answered."""
        begun: _Begun | None = sent.span
        if begun is None:
            return
        duration_s = now - sent.sent_s
        context = begun.context
        if context is None:
            usual_s = engine.times.predict(sent.tokens)
            if duration_s < max(SLOW_AT_LEAST_S, SLOW * usual_s) or not engine.step_spans[1].take(now):
                self.left_out += 1
                return
            context = self._tracer.child(begun.parent)
        programs = {command.queue.program: None for commands in sent.batches for command in commands}
        links = [p.span.link for p in programs if p.span is not None and p.span.sampled]
        attributes: Attributes = {
            names.ATTR_ENGINE_ID: engine.id,
            names.ATTR_MODEL: engine.model.name,
            names.ATTR_STEP_COMMANDS: sum(map(len, sent.batches)),
            names.ATTR_STEP_TOKENS: result.computed_tokens,
            names.ATTR_STEP_DEVICE_TIME: result.device_s,
        }
        self._tracer.record(
            names.SPAN_BATCH, context, begun.parent, duration_s, attributes, links[: self._tracer.max_links]
        )


def _first_sampled(batches: list[list[Command]]) -> SpanContext | None:
    for commands in batches:
        for command in commands:
            span: ProgramSpan | None = command.queue.program.span
            if span is not None and span.sampled:
                return span.context
    return None
