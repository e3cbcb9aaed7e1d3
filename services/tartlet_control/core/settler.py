"""What an engine's answers mean: tokens and distributions to programs, counts to the books, failures to queues."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

import numpy as np

from tartlet_common.engine.step import BatchResult, Status, StepResult
from tartlet_common.errors.registry import EngineFailure, TartletError
from tartlet_control.calls.commands import EMBED_TXT, GET_NEXT_DIST, SAMPLE, Command, EmbedTxt, GetNextDist
from tartlet_control.core.lifecycle import Lifecycle
from tartlet_control.core.queue_runner import QueueMachine
from tartlet_control.tables.engines import EngineState, SentStep
from tartlet_control.tables.outbox import RESULT, SKIPPED
from tartlet_control.tables.programs import CommandQueue

_OK: Final = int(Status.OK)
_SKIPPED: Final = int(Status.SKIPPED)
_FAILED: Final = int(Status.FAILED)
_RATE_WINDOW_S: Final = 1.0
_DIST_HEAD: Final = Struct("<II")


class Settler:
    """Matches step results with the commands they answer."""

    def __init__(self, machine: QueueMachine, lifecycle: Lifecycle) -> None:
        self._machine = machine
        self._lifecycle = lifecycle
        self.on_settled: Callable[[EngineState, SentStep, StepResult, float], None] | None = None

    def settle(self, engine: EngineState, result: StepResult, now: float) -> None:
        """Account for one step.

        Raises:
            EngineFailure: the answer doesn't fit the step; the engine can't be trusted any more.
        """
        if not engine.in_flight or engine.in_flight[0].number != result.number:
            raise EngineFailure(detail=f"answered step {result.number}, which is not the one in turn")
        sent = engine.in_flight[0]
        _check(sent.batches, result)
        engine.in_flight.popleft()
        engine.began_s = now  # of the next one, if there is one
        engine.times.add(result.computed_tokens, result.device_s)
        before = engine.sampled_tokens
        for commands, answers in zip(sent.batches, result.results, strict=True):
            kind = commands[0].kind
            failing = bool(answers.status.any())
            if kind == SAMPLE and not failing:
                self._sampled(engine, commands, answers)
            elif failing or kind == GET_NEXT_DIST:
                self._one_by_one(engine, commands, answers)
            else:
                self._plain(commands)
        engine.steps += 1
        engine.computed_tokens += result.computed_tokens
        engine.device_s += result.device_s
        _rate(engine, engine.sampled_tokens - before, now)
        engine.returns.answered(sent.queues, engine.apart_s(sent.tokens), now)
        if self.on_settled is not None:
            self.on_settled(engine, sent, result, now)

    def _sampled(self, engine: EngineState, commands: list[Command], answers: BatchResult) -> None:
        """All tokens of a batch, none of which failed or was skipped."""
        tokens = answers.token.view(np.uint32).tolist()
        logprobs = answers.logprob.view(np.uint32).tolist()
        for command, token, ended, logprob in zip(commands, tokens, answers.ended.tolist(), logprobs, strict=True):
            queue = command.queue
            program = queue.program
            queue.settled += 1
            program.dispatched -= 1
            program.in_flight -= 1
            if program.live:
                program.sampled_tokens += 1
                program.session.outbox.deliver(
                    program.handle, RESULT, command.awaited, command.ticket, queue.id, token, ended, logprob
                )
                if queue.syncs:
                    self._answer_syncs(queue)
            else:
                self._lifecycle.settle_if_done(program)
        engine.sampled_tokens += len(commands)

    def _plain(self, commands: list[Command]) -> None:
        """A batch without values, none of which failed or was skipped."""
        count_tokens = commands[0].kind == EMBED_TXT
        for command in commands:
            queue = command.queue
            program = queue.program
            queue.settled += 1
            program.dispatched -= 1
            program.in_flight -= 1
            if not program.live:
                self._lifecycle.settle_if_done(program)
                continue
            if count_tokens and not command.from_slots:  # type: ignore[attr-defined]  # an EmbedTxt, by its kind
                program.input_tokens += command.tokens
            if command.awaited:
                program.session.outbox.deliver(program.handle, RESULT, 1, command.ticket, queue.id)
            if queue.syncs:
                self._answer_syncs(queue)

    def _one_by_one(self, engine: EngineState, commands: list[Command], answers: BatchResult) -> None:
        """The general case."""
        failures = iter(answers.detail)
        dists = _distributions(commands, answers) if commands[0].kind == GET_NEXT_DIST else None
        values = _values(answers) if commands[0].kind == SAMPLE else None
        statuses, errors = answers.status.tolist(), answers.error.tolist()
        for i, command in enumerate(commands):
            queue = command.queue
            program = queue.program
            index = queue.settled
            queue.settled += 1
            program.dispatched -= 1
            status = statuses[i]
            if status == _FAILED:
                self._failed(engine, command, index, TartletError.from_wire(errors[i], next(failures, "")))
            elif status in (_OK, _SKIPPED):
                program.in_flight -= 1
                if program.live:
                    if status == _SKIPPED:
                        self._skipped(command)
                    elif values is not None:
                        program.sampled_tokens += 1
                        engine.sampled_tokens += 1
                        program.session.outbox.deliver(
                            program.handle, RESULT, command.awaited, command.ticket, queue.id, *values[i]
                        )
                    else:
                        self._completed(command, dists[i] if dists is not None else b"")
            else:
                self._machine.refuse(command)
            if program.live:
                if queue.syncs:
                    self._answer_syncs(queue)
            else:
                self._lifecycle.settle_if_done(program)

    def _skipped(self, command: Command) -> None:
        if command.awaited:
            program = command.queue.program
            program.session.outbox.deliver(program.handle, SKIPPED, 1, command.ticket, command.queue.id)

    def _completed(self, command: Command, payload: bytes) -> None:
        program = command.queue.program
        if isinstance(command, EmbedTxt) and not command.from_slots:
            program.input_tokens += command.tokens
        if command.awaited:
            program.session.outbox.deliver(
                program.handle, RESULT, 1, command.ticket, command.queue.id, 0, 0, 0, payload
            )

    def _failed(self, engine: EngineState, command: Command, index: int, error: TartletError) -> None:
        queue = command.queue
        machine = self._machine
        if not queue.program.live:
            engine.reset_lanes.add(queue.lane)  # nobody will reset it; the worker needn't remember it
            machine.poison(queue, command, error)
            return
        queue.failed = (index, error)
        behind_reset = index < queue.reset_at
        standing = queue.poison
        machine.poison(queue, command, error)
        if behind_reset:
            queue.poison = standing  # a reset has passed since: it doesn't reach what came after
        else:
            machine.drain_poisoned(queue)
            machine.advance(queue)

    def _answer_syncs(self, queue: CommandQueue) -> None:
        program, failed = queue.program, queue.failed
        while queue.syncs and queue.syncs[0].at <= queue.settled:
            _, ticket, reset_at = queue.syncs.popleft()
            program.in_flight -= 1
            if not ticket:
                continue
            if failed is not None and failed[0] >= reset_at:
                program.session.outbox.fail(program.handle, ticket, queue.id, failed[1], answers=True)
            else:
                program.session.outbox.deliver(program.handle, RESULT, 1, ticket, queue.id)


def _values(answers: BatchResult) -> list[tuple[int, int, int]]:
    tokens = answers.token.view(np.uint32).tolist()
    return list(zip(tokens, answers.ended.tolist(), answers.logprob.view(np.uint32).tolist(), strict=True))


def _distributions(commands: list[Command], answers: BatchResult) -> list[bytes]:
    """u32 n, k, ids[n, k], f32 probs[n, k] for each command; b"" for one that wasn't answered."""
    payloads = []
    indptr = answers.dist_indptr.tolist()
    ids, probs = answers.dist_token.tobytes(), answers.dist_prob.tobytes()
    at = 0
    for command in commands:
        n = len(command.embeds)  # type: ignore[attr-defined]  # a GetNextDist, by its kind
        start, end = indptr[at], indptr[at + n]
        at += n
        head = _DIST_HEAD.pack(n, (end - start) // n)
        payloads.append(head + ids[4 * start : 4 * end] + probs[4 * start : 4 * end])
    return payloads


def _check(batches: list[list[Command]], result: StepResult) -> None:
    if len(batches) != len(result.results):
        raise EngineFailure(detail=f"answered {len(result.results)} of {len(batches)} batches")
    for commands, answers in zip(batches, result.results, strict=True):
        n = len(commands)
        fits = len(answers.status) == n and len(answers.error) == n
        if commands[0].kind == SAMPLE:
            fits = fits and len(answers.token) == len(answers.ended) == len(answers.logprob) == n
        elif commands[0].kind == GET_NEXT_DIST:
            fits = fits and _dist_fits(commands, answers)
        if not fits:
            raise EngineFailure(detail=f"its answer's columns don't fit a batch of {n} commands")


def _dist_fits(commands: list[Command], answers: BatchResult) -> bool:
    indptr = answers.dist_indptr
    embeds = sum(len(c.embeds) for c in commands if isinstance(c, GetNextDist))
    if len(indptr) != embeds + 1 or indptr[0] != 0 or (np.diff(indptr) < 0).any():
        return False
    return int(indptr[-1]) == len(answers.dist_token) == len(answers.dist_prob)


def _rate(engine: EngineState, tokens: int, now: float) -> None:
    """Tokens a second over the last window."""
    engine.window_tokens += tokens
    passed = now - engine.window_s
    if passed >= _RATE_WINDOW_S:
        engine.tokens_per_s = engine.window_tokens / passed if passed < 2 * _RATE_WINDOW_S else 0.0
        engine.window_s, engine.window_tokens = now, 0
