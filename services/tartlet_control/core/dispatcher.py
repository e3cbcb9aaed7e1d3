"""Asks the policy what an engine should do next, and makes a step of the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tartlet_common.engine.step import Batch
from tartlet_common.errors.registry import TartletError
from tartlet_control.batching.gather import Dispatch, View
from tartlet_control.batching.policies import Policy
from tartlet_control.calls.batch_builder import build
from tartlet_control.calls.commands import Command
from tartlet_control.core.queue_runner import QueueMachine
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.programs import CommandQueue


class Dispatcher:
    """Applies plans: takes commands off their queues, translates them and hands the step to the engine."""

    def __init__(self, policy: Policy, depth: int, machine: QueueMachine) -> None:
        self._policy = policy
        self._depth = depth
        self._machine = machine
        self.on_step: Callable[[EngineState, list[list[Command]]], tuple[Any, str]] | None = None  # span, traceparent

    def pump(self, engine: EngineState, now: float) -> None:
        """Send the engine as many steps as the policy wants; `engine.look_at` says when to ask again."""
        while engine.active and len(engine.in_flight) < self._depth:
            view = View(
                engine.active,
                len(engine.in_flight),
                self._depth,
                engine.limits,
                prioritised=engine.prioritised > 0,
                running=engine.running(),
                away=engine.away(),
                expected=engine.returns.expected(now),
            )
            plan = self._policy(view, now)
            if not plan.dispatches:
                engine.look_at = plan.look_at
                return
            self._apply(engine, plan.dispatches, now)
        engine.look_at = None

    def _apply(self, engine: EngineState, dispatches: list[Dispatch], now: float) -> None:
        touched: dict[CommandQueue, None] = {}
        for dispatch in dispatches:
            for command in dispatch.commands:
                queue = command.queue
                taken = queue.pending.popleft()
                assert taken is command, "a plan must keep the order within a queue"
                touched[queue] = None
        poisoned: list[CommandQueue] = []
        batches, kept = self._build(dispatches, poisoned)
        if batches:
            span, traceparent = (None, "") if self.on_step is None else self.on_step(engine, kept)
            engine.finish_step(batches, kept, list(touched), now, traceparent).span = span
        machine = self._machine
        for queue in poisoned:
            machine.drain_poisoned(queue)
        advance = machine.advance
        for queue in touched:
            pending = queue.pending
            if not pending or not pending[0].kind or queue.lane < 0:  # else: still active, as it is
                advance(queue)

    def _build(
        self, dispatches: list[Dispatch], poisoned: list[CommandQueue]
    ) -> tuple[list[Batch], list[list[Command]]]:
        machine = self._machine

        def fail(command: Command, error: TartletError) -> None:
            machine.poison(command.queue, command, error)
            poisoned.append(command.queue)

        batches: list[Batch] = []
        kept: list[list[Command]] = []
        for dispatch in dispatches:
            batch, commands = build(dispatch.kind, dispatch.commands, fail, machine.refuse)
            if batch is None:
                continue
            for command in commands:
                queue = command.queue
                queue.dispatched += 1
                queue.program.dispatched += 1
            batches.append(batch)
            kept.append(commands)
        return batches, kept
