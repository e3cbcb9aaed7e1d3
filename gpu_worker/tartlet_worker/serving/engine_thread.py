"""The one thread that runs an engine's steps, and the hand-over between this thread and the event loop.

Steps wait in a `SimpleQueue`. The loop gets each result when its step ends, so two steps in flight keep the engine busy
while the network works. If the next step is waiting already, the loop gets the result when the device computes that
step: any earlier, the loop's thread would take the interpreter while the device waits for work. An engine that can
begin a step before it has read the one before is given the next step early. An engine that raises is broken; the thread
reports this and takes no further work.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from tartlet_common.engine import step_codec
from tartlet_common.engine.step import Step, StepResult
from tartlet_common.engine.token_bytes import bytes_told
from tartlet_common.errors.registry import EngineFailure, MalformedSubmission, TartletError
from tartlet_common.telemetry import names, telemetry
from tartlet_protos import engine_pb2
from tartlet_worker.engine import Engine
from tartlet_worker.serving.token_texts import with_bytes

if TYPE_CHECKING:
    from tartlet_common.telemetry.steps import StepTracer

log = logging.getLogger("tartlet.worker")

_LOOK_AGAIN_S = 0.0002
"""How often the thread looks whether the device is done, while the engine waits for a next step."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A report of the thread: the result of a step, or why there is none."""

    link: int  # the link that sent the step; results for earlier links are dropped
    result: engine_pb2.StepResultFrame | None
    broken: TartletError | None = None  # the engine can't continue
    malformed: TartletError | None = None  # the frame could not be read, and no part of it was run


@dataclass(frozen=True, slots=True)
class _Reset:
    keep: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Afterwards:
    call: Callable[[], None]


@dataclass(slots=True)
class _Work:
    link: int
    frame: engine_pb2.StepFrame
    step: Step | None = None  # once it is decoded

    def decoded(self) -> Step:
        """Return the step of the frame; errors as `step_codec.step_from_proto`."""
        if self.step is None:
            self.step = step_codec.step_from_proto(self.frame)
        return self.step


_Item = _Work | _Reset | _Afterwards | None
"""What the thread does next; None: it ends."""


class EngineThread:
    """Runs steps one after the other. The event loop's thread calls everything but `_run`."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop, finished: Callable[[Finished], None]) -> None:
        self._engine = engine
        self._loop = loop
        self._finished = finished
        self._queue: SimpleQueue[_Item] = SimpleQueue()
        self._taken: list[_Item] = []  # from the queue, while a step ran: one item at most
        self._held: Finished | None = None  # the last report, until the loop gets it
        self._ending = False
        self._words: list[bytes] = []  # the bytes of each token
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, link: int, frame: engine_pb2.StepFrame) -> None:
        """Queue a step. Its report carries the same `link`."""
        self._queue.put(_Work(link, frame))

    def reset(self, keep: Iterable[int] = ()) -> None:
        """Queue a reset of the engine's pools but some pages, which happens after the steps that were queued before."""
        self._queue.put(_Reset(tuple(keep)))

    def afterwards(self, call: Callable[[], None]) -> None:
        """Have the thread call something after the steps that were queued before."""
        self._queue.put(_Afterwards(call))

    async def stop(self, timeout_s: float = 5.0) -> None:
        """End the thread after its current step. A step that takes longer than `timeout_s` ends with the process."""
        self._queue.put(None)
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, timeout_s)

    def _run(self) -> None:
        self._words = bytes_told(self._engine.tokenizer_json())
        while (item := self._next()) is not None:
            report = self._step(item) if isinstance(item, _Work) else self._between_steps(item)
            if report is None:
                continue
            self._tell()
            self._held = report
            if report.broken is not None:
                break
        self._tell()

    def _next(self) -> _Item:
        if self._taken:
            return self._taken.pop() if not self._ending else None
        if self._queue.empty():  # there is no next step whose computing the report could wait for
            self._tell()
        return self._queue.get() if not self._ending else None

    def _following(self, over: Callable[[], bool]) -> Step | None:
        """See `tartlet_worker.engine.Following`."""
        while not self._taken:
            try:
                self._taken.append(self._queue.get(timeout=_LOOK_AGAIN_S))
            except Empty:
                if over():
                    return None
        work = self._taken[0]
        if not isinstance(work, _Work):
            return None
        try:
            return work.decoded()
        except Exception:  # noqa: BLE001 - reported when its turn comes
            return None

    def _tell(self) -> None:
        """Give the loop the last report, unless it has it."""
        report, self._held = self._held, None
        if report is not None:
            try:
                self._loop.call_soon_threadsafe(self._finished, report)
            except RuntimeError:  # the loop is closed: the process is ending
                self._ending = True

    def _between_steps(self, item: _Reset | _Afterwards) -> Finished | None:
        """Reset the engine or call what should be called; return a report if that failed."""
        try:
            if isinstance(item, _Reset):
                self._tell()
                self._engine.reset(item.keep)
            else:
                item.call()
        except Exception as e:  # the device may have failed while no step ran
            log.exception("the engine broke between two steps")
            return Finished(0, None, _typed(e))
        return None

    def _step(self, work: _Work) -> Finished:
        try:
            step = work.decoded()
        except MalformedSubmission as e:
            return Finished(work.link, None, malformed=e)
        except Exception as e:  # noqa: BLE001 - our bug: control, which waits for the step, is told all the same
            return _broken(work, e)
        try:
            result = step_codec.result_to_proto(with_bytes(step, self._compute(step), self._words))
        except Exception as e:  # noqa: BLE001 - our bug, or the engine is broken
            return _broken(work, e)
        return Finished(work.link, result)

    def _compute(self, step: Step) -> StepResult:
        """Run a step, and record its span below the span of control's step."""
        tracer = telemetry.step_tracer() if step.traceparent else None
        if tracer is None:
            return self._engine.step(step, self._tell, self._following)
        start_ns = time.time_ns()
        result = self._engine.step(step, self._tell, self._following)
        telemetry.later(_record, tracer, step.traceparent, start_ns, time.time_ns(), result.computed_tokens)
        return result


def _broken(work: _Work, error: Exception) -> Finished:
    log.error("the engine broke in step %d", work.frame.number, exc_info=error)
    return Finished(work.link, None, _typed(error))


def _typed(error: Exception) -> TartletError:
    return error if isinstance(error, TartletError) else EngineFailure(detail=repr(error))


def _record(tracer: StepTracer, traceparent: str, start_ns: int, end_ns: int, tokens: int) -> None:
    parent = tracer.remote(traceparent)
    if parent is not None:
        attributes = {names.ATTR_STEP_TOKENS: tokens}
        tracer.record(names.SPAN_ENGINE_STEP, tracer.new_id(), parent, start_ns, end_ns, attributes)
