"""A span and metrics for each program; nothing at all when telemetry is off."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.trace import Span, Status, StatusCode

from tartlet_common.errors.registry import TartletError
from tartlet_common.pauses import Pause
from tartlet_common.telemetry import names, telemetry
from tartlet_protos import programs_pb2


@dataclass(frozen=True, slots=True)
class ProgramSpan:
    """A program's span: child of the client's, parent of control's."""

    span: Span

    def context(self) -> dict[str, str]:
        """W3C trace context for control."""
        return telemetry.inject(trace.set_span_in_context(self.span))

    def recovering(self, pause: Pause) -> None:
        """Note that the program goes on after it stood still because a part of the system was gone."""
        self.span.add_event(
            names.EVENT_RECOVERING, {names.ATTR_PAUSE: pause.seconds, names.ATTR_PAUSE_CAUSE: pause.cause}
        )

    def end(self, model: str, usage: programs_pb2.Usage, error: TartletError | None, end_ns: int) -> None:
        """Close the span as of `end_ns` since 1970; no text of the program's is in it."""
        if model:  # of one that asked for none it shows after its launch; an unknown one stays as it was asked for
            self.span.set_attribute(names.ATTR_MODEL, model)
        self.span.set_attribute(names.ATTR_INPUT_TOKENS, usage.input_tokens)
        self.span.set_attribute(names.ATTR_OUTPUT_TOKENS, usage.sampled_tokens)
        if error is not None:
            self.span.set_attribute(names.ATTR_ERROR, error.name)
            self.span.set_status(Status(StatusCode.ERROR, error.name))
        self.span.end(end_ns)


class Spans:
    """Starts spans if telemetry is on; counts and measures programs also where only `/metrics` is asked for."""

    def __init__(self, *, scraped: bool = False) -> None:
        """Ask once whether anything is exported. `scraped`: metrics are."""
        self._traced = telemetry.enabled()
        self._measured = self._traced or scraped
        self._running = 0
        if not self._measured:
            return
        meter = telemetry.meter()
        self._duration = telemetry.histogram(names.METRIC_AGENT_DURATION, "s")
        self._first = telemetry.histogram(names.METRIC_TIME_TO_FIRST_TOKEN, "s")
        self._per_token = telemetry.histogram(names.METRIC_TIME_PER_OUTPUT_TOKEN, "s")
        self._tokens = telemetry.histogram(names.METRIC_TOKEN_USAGE, "{token}")
        self._ended = meter.create_counter(names.METRIC_PROGRAMS_ENDED)
        self._tracer = telemetry.tracer()
        meter.create_observable_up_down_counter(names.METRIC_PROGRAMS_RUNNING, [self._observe_running])

    def start(self, program_id: str, name: str, model: str, parent: Mapping[str, str]) -> ProgramSpan | None:
        """Begin the span of a program; None with telemetry off."""
        self._running += 1
        if not self._traced:
            return None
        attributes = {names.ATTR_OPERATION: names.OPERATION, names.ATTR_PROVIDER: names.PROVIDER}
        attributes[names.ATTR_PROGRAM_ID] = program_id
        attributes |= {names.ATTR_PROGRAM_NAME: name, names.ATTR_MODEL: model}
        context = telemetry.extract(parent) if parent else None
        return ProgramSpan(self._tracer.start_span(names.SPAN_PROGRAM, context, attributes=attributes))

    def end(self, span: ProgramSpan | None, model: str, usage: programs_pb2.Usage, error: TartletError | None) -> None:
        """End the span of a program."""
        self._running -= 1
        if self._measured:
            telemetry.later(self._measure, span, model, usage, error, time.time_ns())

    def _measure(
        self,
        span: ProgramSpan | None,
        model: str,
        usage: programs_pb2.Usage,
        error: TartletError | None,
        end_ns: int,
    ) -> None:
        if span is not None:
            span.end(model, usage, error, end_ns)
        attributes = {names.ATTR_MODEL: model} | ({names.ATTR_ERROR: error.name} if error else {})
        self._ended.add(1, attributes)
        attributes |= {names.ATTR_OPERATION: names.OPERATION, names.ATTR_PROVIDER: names.PROVIDER}
        self._duration.record(usage.wall_s, attributes)
        for kind, count in (("input", usage.input_tokens), ("output", usage.sampled_tokens)):
            if count:
                self._tokens.record(count, attributes | {names.ATTR_TOKEN_TYPE: kind})
        if usage.sampled_tokens:
            self._first.record(usage.first_token_s, attributes)
        if usage.sampled_tokens > 1 and usage.per_token_s:
            self._per_token.record(usage.per_token_s, attributes)

    def _observe_running(self, _: CallbackOptions) -> Iterable[Observation]:
        telemetry.flush()  # gauges are asked before counters and histograms are read
        return [Observation(self._running)]
