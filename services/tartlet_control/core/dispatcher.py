"""Asks an engine's batcher what to send next, and makes steps of the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tartlet_common.abi import Record
from tartlet_common.engine.step import Batch, CopyKvPage, Kind
from tartlet_common.errors.base import TartletError
from tartlet_control.batching.batcher import Batcher, SentStep
from tartlet_control.batching.gather import Dispatch
from tartlet_control.calls.base import u32
from tartlet_control.calls.registry import build
from tartlet_control.core.queue_runner import QueueRunner
from tartlet_control.rebuild.logs import settle_many
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.page_tables import MANY_CHANGES
from tartlet_control.tables.programs import Command, CommandQueue

_RECORD: Final = Record(0, 0, 0, 0, 0, 0, 0, 0, 0)


class RowCopied(Command):
    """Copies the first tokens of a row that a program doesn't have alone."""

    __slots__ = ()
    kind = int(Kind.COPY_KVPAGE)


class Dispatcher:
    """Applies plans: takes commands off their queues, translates them and hands the step to the engine."""

    def __init__(self, runner: QueueRunner) -> None:
        self._runner = runner
        self.on_step: Callable[[EngineState, list[list[Command]]], tuple[Any, str]] | None = None  # span, traceparent

    def pump(self, engine: EngineState, batcher: Batcher, now: float) -> None:
        """Send the engine as many steps as its batcher wants; `batcher.look_at` says when to ask again."""
        while dispatches := batcher.plan(now):
            self._apply(engine, batcher, dispatches, now)
        if len(engine.tables) > MANY_CHANGES:  # nothing used them meanwhile, and they take memory
            first = engine.step_number + 1
            for number in range(first, engine.send_step([], "") + 1):
                batcher.sent(SentStep(number, [], [], now))

    def _apply(self, engine: EngineState, batcher: Batcher, dispatches: list[Dispatch], now: float) -> None:
        touched: dict[CommandQueue, None] = {}
        runner = self._runner
        for dispatch in dispatches:
            for command in dispatch.commands:
                queue = command.queue
                taken = queue.pending.popleft()
                assert taken is command, "a plan must keep the order within a queue"
                touched[queue] = None
        poisoned: list[CommandQueue] = []
        batches, kept = self._build(dispatches, poisoned)
        if batches:
            self._send(engine, batcher, batches, kept, list(touched), now)
        if any(queue.place.replay is not None for queue in touched):
            for dispatch in dispatches:
                for command in dispatch.commands:
                    runner.gone(command.queue.place, command)
        for queue in poisoned:
            runner.drain_poisoned(queue)
        for queue in touched:
            settle_many(queue.place)
            runner.advance(queue)

    def _send(
        self,
        engine: EngineState,
        batcher: Batcher,
        batches: list[Batch],
        kept: list[list[Command]],
        queues: list[CommandQueue],
        now: float,
    ) -> None:
        span, traceparent = (None, "") if self.on_step is None else self.on_step(engine, kept)
        first = engine.step_number + 1
        last = engine.send_step(batches, traceparent)
        for number in range(first, last):  # steps that only clear
            batcher.sent(SentStep(number, [], [], now))
        batcher.sent(SentStep(last, kept, queues, now, span))

    def _build(
        self, dispatches: list[Dispatch], poisoned: list[CommandQueue]
    ) -> tuple[list[Batch], list[list[Command]]]:
        runner = self._runner

        def fail(command: Command, error: TartletError) -> None:
            runner.poison(command.queue, command, error)
            poisoned.append(command.queue)

        batches: list[Batch] = []
        kept: list[list[Command]] = []
        for dispatch in dispatches:
            batch, commands = build(dispatch.kind, dispatch.commands, fail, runner.refuse)
            if batch is None:
                continue
            for command in commands:
                queue = command.queue
                queue.dispatched += 1
                queue.program.dispatched += 1
                if queue.id >= 0:
                    queue.place.log.append(command)
                else:
                    queue.program.in_flight += 1
            engine = commands[0].queue.place.engine
            if engine is not None and engine.copies:  # rows that this batch writes
                copies, their = self._copy_rows(engine)
                batches.append(copies)
                kept.append(their)
            batches.append(batch)
            kept.append(commands)
        return batches, kept

    def _copy_rows(self, engine: EngineState) -> tuple[Batch, list[Command]]:
        """Make a batch of the copies that the batch after it needs, by commands of control's own."""
        commands: list[Command] = []
        lanes, rows = [], []
        for copy in engine.copies:
            place = self._runner.place_of(copy.program_id, engine)
            queue = place.own_queue()
            if queue.lane < 0:
                queue.spec, queue.lane = engine.spec, engine.new_lane()
            commands.append(RowCopied(queue, _RECORD, 0.0))
            queue.dispatched += 1
            queue.program.dispatched += 1
            queue.program.in_flight += 1
            lanes.append(queue.lane)
            rows.append((copy.source, copy.target, 0, 0, copy.tokens))
        engine.copies.clear()
        return CopyKvPage(u32(lanes), *np.array(rows, np.int32).T), commands
