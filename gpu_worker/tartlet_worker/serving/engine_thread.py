"""The one thread that runs an engine's steps, and the hand-over between it and the event loop.

Steps wait in a `SimpleQueue`; results are handed to the loop as they finish, so two steps in flight keep the engine
busy while the network works. Where the next step waits already, a result is handed over when the device computes that
one: before, the loop's thread would take the interpreter from a device that waits for its work. An engine that raises
is broken: the thread says so and takes no further work.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING

from tartlet_common.engine import step_codec
from tartlet_common.engine.step import Step, StepResult
from tartlet_common.errors.registry import EngineFailure, MalformedSubmission, TartletError
from tartlet_common.telemetry import names, telemetry
from tartlet_protos import engine_pb2
from tartlet_worker.engine import Engine

if TYPE_CHECKING:
    from tartlet_common.telemetry.steps import StepTracer

log = logging.getLogger("tartlet.worker")


@dataclass(frozen=True, slots=True)
class Finished:
    """What the thread reports: the result of a step, or why there is none."""

    connection: int  # the connection that asked; results of an earlier one are dropped
    result: engine_pb2.StepResultFrame | None
    broken: TartletError | None = None  # the engine can't go on
    malformed: TartletError | None = None  # the frame made no sense: nothing of it was run


@dataclass(frozen=True, slots=True)
class _Reset:
    pass


@dataclass(frozen=True, slots=True)
class _Work:
    connection: int
    frame: engine_pb2.StepFrame


class EngineThread:
    """Runs steps one after the other; every call but `_run` comes from the event loop's thread."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop, finished: Callable[[Finished], None]) -> None:
        self._engine = engine
        self._loop = loop
        self._finished = finished
        self._queue: SimpleQueue[_Work | _Reset | None] = SimpleQueue()
        self._held: Finished | None = None  # ended, not yet reported
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Begin to take work."""
        self._thread.start()

    def submit(self, connection: int, frame: engine_pb2.StepFrame) -> None:
        """Queue a step; its result is reported with the same `connection`."""
        self._queue.put(_Work(connection, frame))

    def reset(self) -> None:
        """Queue a reset of the engine's pools, in order with the steps."""
        self._queue.put(_Reset())

    async def stop(self, timeout_s: float = 5.0) -> None:
        """Finish the step at hand and end the thread; a step that takes longer is left to the process's end."""
        self._queue.put(None)
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, timeout_s)

    def _run(self) -> None:
        while (item := self._next()) is not None:
            if isinstance(item, _Reset):
                self._tell()
                self._engine.reset()
                continue
            report = self._step(item)
            self._tell()
            self._held = report
            if report.broken is not None:
                break
        self._tell()

    def _next(self) -> _Work | _Reset | None:
        if self._queue.empty():  # nothing comes that `_tell` could wait for
            self._tell()
        return self._queue.get() if not self._ending else None

    def _tell(self) -> None:
        """Report the step that ended last, unless that is done."""
        report, self._held = self._held, None
        if report is not None:
            try:
                self._loop.call_soon_threadsafe(self._finished, report)
            except RuntimeError:  # the loop is closed: the process is ending
                self._ending = True

    def _step(self, work: _Work) -> Finished:
        try:
            step = step_codec.step_from_proto(work.frame)
        except MalformedSubmission as e:
            return Finished(work.connection, None, malformed=e)
        except Exception as e:  # noqa: BLE001 - a bug of ours: whoever waits for the step is told all the same
            return _broken(work, e)
        try:
            result = step_codec.result_to_proto(self._compute(step))
        except Exception as e:  # noqa: BLE001 - likewise, or the engine's end
            return _broken(work, e)
        return Finished(work.connection, result)

    def _compute(self, step: Step) -> StepResult:
        """Run a step, and record its span under the one of control's step."""
        tracer = telemetry.step_tracer() if step.traceparent else None
        if tracer is None:
            return self._engine.step(step, self._tell)
        start_ns = time.time_ns()
        result = self._engine.step(step, self._tell)
        telemetry.later(_record, tracer, step.traceparent, start_ns, time.time_ns(), result.computed_tokens)
        return result


def _broken(work: _Work, error: Exception) -> Finished:
    log.error("the engine broke in step %d", work.frame.number, exc_info=error)
    typed = error if isinstance(error, TartletError) else EngineFailure(detail=repr(error))
    return Finished(work.connection, None, typed)


def _record(tracer: StepTracer, traceparent: str, start_ns: int, end_ns: int, tokens: int) -> None:
    parent = tracer.remote(traceparent)
    if parent is not None:
        attributes = {names.ATTR_STEP_TOKENS: tokens}
        tracer.record(names.SPAN_ENGINE_STEP, tracer.new_id(), parent, start_ns, end_ns, attributes)
