"""Spans of programs and steps, and metrics, when telemetry is on; the core holds None in place of this when it is off.

A step's span is a child of the first of its programs' spans and links to the others (contract 13); the worker's span is
a child of the step's. No text of a program is in any of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.trace import Link, Span, Status, StatusCode

from tartlet_common import telemetry
from tartlet_common import telemetry_names as names
from tartlet_common.errors import TartletError
from tartlet_common.step import StepResult
from tartlet_control.commands import Command
from tartlet_control.core import Core
from tartlet_control.engines import EngineState, SentStep
from tartlet_control.ledger import PAGES
from tartlet_control.lifecycle import StartRequest
from tartlet_control.queues import Program

MAX_LINKS: Final = 128
"""Programs that a step's span names; a larger step names the first ones."""


class Observer:
    """What the core reports to."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._tracer = telemetry.tracer()
        meter = telemetry.meter()
        self._ended = meter.create_counter(names.METRIC_PROGRAMS_ENDED)
        self._leaks = meter.create_counter(names.METRIC_LEDGER_LEAKS)
        self._duration = meter.create_histogram(names.METRIC_STEP_DURATION, unit="s")
        self._commands = meter.create_histogram(names.METRIC_STEP_COMMANDS)
        meter.create_observable_gauge(names.METRIC_PROGRAMS_RUNNING, [self._running])
        meter.create_observable_gauge(names.METRIC_PAGES_FREE, [self._pages_free])
        meter.create_observable_gauge(names.METRIC_PAGES_HELD, [self._pages_held])

    def attach(self, *, traced: bool) -> None:
        """Have the core report; metrics only unless `traced`."""
        core = self._core
        if traced:
            core.lifecycle.on_start = self.program_started
            core.dispatcher.on_step = self.step_begins
        core.lifecycle.on_end = self.program_ended
        core.settler.on_settled = self.step_ended
        core.on_leak = lambda engine, _: self._leaks.add(1, {names.ATTR_ENGINE_ID: engine.id})

    # ---- programs -----------------------------------------------------------------------------------------------

    def program_started(self, program: Program, request: StartRequest) -> None:
        """Open the program's span under its runtime's."""
        parent = telemetry.extract(dict(request.trace)) if request.trace else None
        attributes = {names.ATTR_PROGRAM_ID: program.id, names.ATTR_PROGRAM_NAME: program.name}
        program.span = self._tracer.start_span(names.SPAN_CONTROL_PROGRAM, context=parent, attributes=attributes)

    def program_ended(self, program: Program, error: TartletError | None) -> None:
        """Close it with what the program used."""
        attributes = {} if error is None else {names.ATTR_ERROR: error.name}
        self._ended.add(1, attributes)
        span: Span | None = program.span
        if span is None:
            return
        span.set_attribute(names.ATTR_INPUT_TOKENS, program.input_tokens)
        span.set_attribute(names.ATTR_OUTPUT_TOKENS, program.sampled_tokens)
        if error is not None:
            span.set_attribute(names.ATTR_ERROR, error.name)
            span.set_status(Status(StatusCode.ERROR, error.name))
        span.end()

    # ---- steps --------------------------------------------------------------------------------------------------

    def step_begins(self, engine: EngineState, batches: list[list[Command]]) -> tuple[Span, str]:
        """The span of a step about to be sent, and its W3C traceparent for the worker."""
        spans: list[Span] = list(_spans(batches))
        parent = trace.set_span_in_context(spans[0]) if spans else None
        span = self._tracer.start_span(
            names.SPAN_BATCH,
            context=parent,
            links=[Link(s.get_span_context()) for s in spans[:MAX_LINKS]],
            attributes={
                names.ATTR_ENGINE_ID: engine.id,
                names.ATTR_MODEL: engine.model.name,
                names.ATTR_STEP_COMMANDS: sum(map(len, batches)),
                names.ATTR_STEP_TOKENS: sum(c.tokens for commands in batches for c in commands),
            },
        )
        with trace.use_span(span):
            return span, telemetry.inject().get("traceparent", "")

    def step_ended(self, engine: EngineState, sent: SentStep, result: StepResult, now: float) -> None:
        """Close the step's span."""
        attributes = {names.ATTR_ENGINE_ID: engine.id}
        self._duration.record(now - sent.sent_s, attributes)
        self._commands.record(sum(map(len, sent.batches)), attributes)
        if sent.span is not None:
            sent.span.end()

    # ---- gauges -------------------------------------------------------------------------------------------------

    def _running(self, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(len(self._core.lifecycle.programs))]

    def _pages_free(self, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(e.pools[PAGES].num_free, {names.ATTR_ENGINE_ID: e.id}) for e in self._engines()]

    def _pages_held(self, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(e.pools[PAGES].num_held, {names.ATTR_ENGINE_ID: e.id}) for e in self._engines()]

    def _engines(self) -> list[Any]:
        return list(self._core.engines.values())  # a copy: the exporter reads from a thread of its own


def _spans(batches: list[list[Command]]) -> Iterable[Span]:
    """The spans of the programs in a step, each once."""
    programs = {command.queue.program: None for commands in batches for command in commands}
    return (p.span for p in programs if p.span is not None)
