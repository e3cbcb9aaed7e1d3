"""Makes spans of programs, and metrics, when telemetry is on. `step_spans` makes the spans of steps.

No text of a program is in a span or metric. When telemetry is off, the core calls no-op callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.trace import Status, StatusCode

from tartlet_common.engine.step import StepResult
from tartlet_common.errors.registry import TartletError
from tartlet_common.telemetry import names, telemetry
from tartlet_control.batching.batcher import SentStep
from tartlet_control.core.core import Core
from tartlet_control.core.lifecycle import StartRequest
from tartlet_control.serving.state import pool_of
from tartlet_control.serving.step_spans import Ended, ProgramSpan, StepSpans
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.ledger import PAGES
from tartlet_control.tables.programs import ProgramState

UNNAMED_ERROR: Final = "_OTHER"
"""OpenTelemetry's name for an unnamed error. Of a program's own failure, control knows only that it failed."""
MAX_ENGINES: Final = 256
"""Engines that metrics tell apart since control started: a worker may have another name after each start."""
OTHER_ENGINES: Final = "other"
_PEERS: Final = ("runtime", "worker")


class Observer:
    """Receives the core's reports."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._engine_ids: set[str] = set()
        self._pools: set[tuple[str, str]] = set()  # pools and their models that metrics tell apart
        self._tracer = telemetry.tracer()
        meter = telemetry.meter()
        self._ended = meter.create_counter(names.METRIC_PROGRAMS_ENDED)
        self._leaks = meter.create_counter(names.METRIC_LEDGER_LEAKS)
        self._resumes = meter.create_counter(names.METRIC_LINK_RESUMES)
        self._duration = telemetry.histogram(names.METRIC_STEP_DURATION, "s")
        self._commands = telemetry.histogram(names.METRIC_STEP_COMMANDS)
        self._steps: StepSpans | None = None
        meter.create_observable_gauge(names.METRIC_PROGRAMS_RUNNING, [self._running])
        meter.create_observable_gauge(names.METRIC_PAGES_FREE, [self._pages_free])
        meter.create_observable_gauge(names.METRIC_PAGES_HELD, [self._pages_held])
        meter.create_observable_gauge(names.METRIC_WORK_WAITING, [self._work_waiting], unit="s")
        meter.create_observable_gauge(names.METRIC_WORK_PROGRAMS, [self._work_programs])

    def attach(self, *, traced: bool) -> None:
        """Make the core report here: metrics, and spans if `traced`."""
        core = self._core
        if traced:
            core.lifecycle.on_start = self.program_started
            tracer = telemetry.step_tracer()
            if tracer is not None and core.settings.step_spans_per_s:
                self._steps = StepSpans(tracer, core.clock, core.settings.step_spans_per_s)
                core.dispatcher.on_step = self._steps.begin
                telemetry.meter().create_observable_counter(names.METRIC_STEP_SPANS_LEFT_OUT, [self._left_out])
        core.lifecycle.on_end = self.program_ended
        core.settler.on_settled = self.step_ended
        core.on_resumed = lambda peer: self._resumes.add(1, {names.ATTR_PEER: peer})
        core.on_leak = lambda engine, _: self._leaks.add(1, self._label(engine))
        self._leaks.add(0)  # a counter that nobody has added to is missing, and alerts can't tell why
        for peer in _PEERS:
            self._resumes.add(0, {names.ATTR_PEER: peer})

    def _label(self, engine: EngineState) -> dict[str, str]:
        """Return the label of an engine. Engines beyond `MAX_ENGINES` share one, because labels stay for ever."""
        if engine.id not in self._engine_ids:
            if len(self._engine_ids) >= MAX_ENGINES:
                return {names.ATTR_ENGINE_ID: OTHER_ENGINES}
            self._engine_ids.add(engine.id)
        return {names.ATTR_ENGINE_ID: engine.id}

    # ---- programs -----------------------------------------------------------------------------------------------

    def program_started(self, program: ProgramState, request: StartRequest) -> None:
        """Open the program's span under its runtime's."""
        parent = telemetry.extract(dict(request.trace)) if request.trace else None
        attributes = {names.ATTR_PROGRAM_ID: program.id, names.ATTR_PROGRAM_NAME: program.name}
        span = self._tracer.start_span(names.SPAN_CONTROL_PROGRAM, context=parent, attributes=attributes)
        program.span = ProgramSpan(span)

    def program_ended(self, program: ProgramState, error: TartletError | None) -> None:
        """Note a program's end, for its span and the counter. `error`: why control ended it, if it did."""
        cause = error or (program.poisoned.error if program.poisoned is not None else None)
        name = cause.name if cause is not None else UNNAMED_ERROR if program.failed else ""
        telemetry.later(self._close_program, program, name, self._core.clock.unix_ns())

    def _close_program(self, program: ProgramState, error: str, end_ns: int) -> None:
        self._ended.add(1, {names.ATTR_ERROR: error} if error else {})
        if program.span is None:
            return
        span = program.span.span
        span.set_attribute(names.ATTR_INPUT_TOKENS, program.input_tokens)
        span.set_attribute(names.ATTR_OUTPUT_TOKENS, program.sampled_tokens)
        if error:
            span.set_attribute(names.ATTR_ERROR, error)
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(end_ns)

    # ---- steps --------------------------------------------------------------------------------------------------

    def step_ended(self, engine: EngineState, sent: SentStep, result: StepResult, now: float) -> None:
        """Note a step, for its span and the histograms."""
        ended = Ended(engine, sent, result.computed_tokens, result.device_s, now, self._core.clock.unix_ns())
        telemetry.later(self._measure_step, ended)

    def _measure_step(self, ended: Ended) -> None:
        attributes = self._label(ended.engine)
        self._duration.record(ended.duration_s, attributes)
        self._commands.record(sum(map(len, ended.sent.batches)), attributes)
        if self._steps is not None:
            self._steps.make(ended)

    # ---- gauges -------------------------------------------------------------------------------------------------

    def _left_out(self, _: CallbackOptions) -> Iterable[Observation]:
        return [] if self._steps is None else [Observation(self._steps.left_out)]

    def _running(self, _: CallbackOptions) -> Iterable[Observation]:
        telemetry.flush()  # gauges are asked before counters and histograms are read
        return [Observation(len(self._core.lifecycle.programs))]

    def _pages_free(self, _: CallbackOptions) -> Iterable[Observation]:
        return self._by_engine(lambda e: e.pools[PAGES].num_available)

    def _pages_held(self, _: CallbackOptions) -> Iterable[Observation]:
        return self._by_engine(lambda e: e.pools[PAGES].num_held)

    def _work_waiting(self, _: CallbackOptions) -> Iterable[Observation]:
        return self._by_pool(self._core.waiting_s)

    def _work_programs(self, _: CallbackOptions) -> Iterable[Observation]:
        return self._by_pool(lambda e: len(e.program_ids))

    def _by_pool(self, value: Callable[[EngineState], float]) -> list[Observation]:
        """Sum a value by pool and model. Labels stay for ever, so their number is bounded."""
        sums: dict[tuple[str, str], float] = {}
        for engine in self._engines():
            of = (pool_of(engine), engine.spec.model)
            if of in self._pools or len(self._pools) < MAX_ENGINES:
                self._pools.add(of)
                sums[of] = sums.get(of, 0.0) + value(engine)
        return [Observation(n, {names.ATTR_POOL: pool, names.ATTR_MODEL: model}) for (pool, model), n in sums.items()]

    def _by_engine(self, value: Callable[[EngineState], int]) -> list[Observation]:
        sums: dict[str, int] = {}
        for engine in self._engines():
            name = self._label(engine)[names.ATTR_ENGINE_ID]
            sums[name] = sums.get(name, 0) + value(engine)
        return [Observation(total, {names.ATTR_ENGINE_ID: name}) for name, total in sums.items()]

    def _engines(self) -> list[Any]:
        return list(self._core.engines.values())  # a copy: the exporter reads from a thread of its own
