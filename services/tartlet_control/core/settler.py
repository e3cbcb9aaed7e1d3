"""Settles answered steps: values go to programs, counts to the books, failures to queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from tartlet_common.engine.step import BatchResult, Kind, Status, StepResult
from tartlet_common.errors.base import TartletError
from tartlet_common.errors.registry import EngineFailure, WorkerLost
from tartlet_control.batching.batcher import Batcher, SentStep
from tartlet_control.calls.base import Value
from tartlet_control.calls.registry import BY_KIND
from tartlet_control.calls.tables import ForwardTable
from tartlet_control.core.lifecycle import Lifecycle
from tartlet_control.core.queue_runner import QueueRunner
from tartlet_control.rebuild.logs import DONE, settle
from tartlet_control.sharing.reuse import offer
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.outbox import RESULT, SKIPPED
from tartlet_control.tables.programs import Command, CommandQueue, ProgramState

_OK: Final = int(Status.OK)
_SKIPPED: Final = int(Status.SKIPPED)
_FAILED: Final = int(Status.FAILED)
_REFUSED: Final = int(Status.REFUSED)
_FORWARD: Final = int(Kind.FORWARD)
_SAMPLE: Final = int(Kind.SAMPLE)


class Settler:
    """Matches step results with the commands they answer."""

    def __init__(self, runner: QueueRunner, lifecycle: Lifecycle) -> None:
        self._runner = runner
        self._lifecycle = lifecycle
        self.settled_on: Callable[[EngineState], None]
        """Called with the engine of each settled step, before `on_settled`."""
        self.on_settled: Callable[[EngineState, SentStep, StepResult, float], None] | None = None
        self.on_watched: Callable[[EngineState, SentStep, StepResult, float], None] | None = None
        """As `on_settled`, while somebody looks at steps."""

    def settle(self, engine: EngineState, batcher: Batcher, result: StepResult, now: float) -> None:
        """Account for one step.

        Raises:
            EngineFailure: the answer doesn't fit the step; the engine can't be trusted any more.
        """
        if not batcher.in_flight or batcher.in_flight[0].number != result.number:
            raise EngineFailure(detail=f"answered step {result.number}, which is not the one in turn")
        values = _values(batcher.in_flight[0].batches, result)  # all are checked before any takes effect
        sent = batcher.answered(result.computed_tokens, result.device_s, now)
        sampled = 0
        for commands, answers, of_batch in zip(sent.batches, result.results, values, strict=True):
            self._settle_batch(engine, commands, answers, of_batch)
            if commands[0].kind == _SAMPLE:
                sampled += len(commands) - int(answers.status.astype(bool).sum())
        engine.count_step(result.computed_tokens, sampled, result.device_s, now)
        batcher.settled(sent, result.device_s, now)
        self.settled_on(engine)
        if self.on_settled is not None:
            self.on_settled(engine, sent, result, now)
        if self.on_watched is not None:
            self.on_watched(engine, sent, result, now)

    def _settle_batch(
        self, engine: EngineState, commands: list[Command], answers: BatchResult, values: Iterable[Value]
    ) -> None:
        call = BY_KIND[commands[0].kind]
        count = self._offer if commands[0].kind == _FORWARD else call.count
        always_answered = call.always_answered
        errors, failures = answers.error, iter(answers.detail)
        for i, (command, status, value) in enumerate(zip(commands, answers.status.tolist(), values, strict=False)):
            queue = command.queue
            program = queue.program
            number = queue.settled
            queue.settled += 1
            program.dispatched -= 1
            if queue.id < 0:
                self._rebuilt(engine, command, status)
                continue
            command.outcome = value if status == _OK else status
            if status == _OK:
                program.in_flight -= 1
                if program.live:
                    if count is not None:
                        count(program, command)
                    if command.awaited or always_answered:
                        program.session.outbox.deliver(
                            program.handle, RESULT, command.awaited, command.ticket, queue.id, *value
                        )
            elif status == _SKIPPED:
                program.in_flight -= 1
                if command.awaited and program.live:
                    program.session.outbox.deliver(program.handle, SKIPPED, 1, command.ticket, queue.id)
            elif status == _FAILED:
                self._failed(engine, command, number, TartletError.from_wire(int(errors[i]), next(failures, "")))
            else:
                self._runner.refuse(command)
            self._follow(program, queue)

    def _follow(self, program: ProgramState, queue: CommandQueue) -> None:
        """Do what waited for a command to settle."""
        if not program.live:
            self._lifecycle.settle_if_done(program)
        elif queue.syncs:
            self._answer_syncs(queue)

    def _offer(self, program: ProgramState, command: Command) -> None:
        """Count computed tokens, and leave the rows of a prefill to other programs."""
        program.computed_tokens += command.tokens
        if command.tokens == 1 or type(command) is not ForwardTable:
            return
        queue = command.queue
        if len(command.oemb) < 2 and queue.caches and self._runner.caches:
            settle(queue.place)
            offer(queue.place, command.table)

    def _rebuilt(self, engine: EngineState, command: Command, status: int) -> None:
        """Account for a command of control's own, which makes a program's state again."""
        program = command.queue.program
        program.in_flight -= 1
        if not program.live:
            self._lifecycle.settle_if_done(program)
        elif status in {_FAILED, _REFUSED}:
            self._lifecycle.kill(program, WorkerLost(engine=f"{engine.id}, which could not make the state again"))

    def _failed(self, engine: EngineState, command: Command, number: int, error: TartletError) -> None:
        queue = command.queue
        runner = self._runner
        if not queue.program.live:
            if queue.lane >= 0:
                engine.reset_lanes.add(queue.lane)  # nobody will reset it; the worker needn't remember it
            runner.poison(queue, command, error, on_engine=True)
            return
        queue.failed = (number, error)
        behind_reset = number < queue.reset_at
        standing = queue.poison
        runner.poison(queue, command, error, on_engine=True)
        if behind_reset:
            queue.poison = standing  # a reset has passed since: it doesn't reach what came after
        else:
            runner.drain_poisoned(queue)
            runner.advance(queue)

    def _answer_syncs(self, queue: CommandQueue) -> None:
        program, failed = queue.program, queue.failed
        while queue.syncs and queue.syncs[0].at <= queue.settled:
            _, ticket, reset_at, command, fork = queue.syncs.popleft()
            fails = failed is not None and failed[0] >= reset_at
            if fork is not None:
                fork(failed[1] if failed is not None and fails else None)
                continue
            command.outcome = DONE
            program.in_flight -= 1
            if not ticket:
                continue
            if failed is not None and fails:
                program.session.outbox.fail(program.handle, ticket, queue.id, failed[1], answers=True)
            else:
                program.session.outbox.deliver(program.handle, RESULT, 1, ticket, queue.id)


def _values(batches: list[list[Command]], result: StepResult) -> list[Iterable[Value]]:
    """Return the values of each batch's commands.

    Raises:
        EngineFailure: the answer's columns don't fit the batches.
    """
    if len(batches) != len(result.results):
        raise EngineFailure(detail=f"answered {len(result.results)} of {len(batches)} batches")
    values = []
    for commands, answers in zip(batches, result.results, strict=True):
        if not len(answers.status) == len(answers.error) == len(commands):
            raise EngineFailure(detail=f"its answer's columns don't fit a batch of {len(commands)} commands")
        values.append(BY_KIND[commands[0].kind].settle(commands, answers))
    return values
