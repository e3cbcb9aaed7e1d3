"""Takes records in: they become commands at the end of their queue, or take effect at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

from tartlet_common.abi import CONTROL_OPS, WORKER_OPS, Op, Priority, Record
from tartlet_common.engine.step import check_covers
from tartlet_common.errors.base import TartletError
from tartlet_common.errors.registry import (
    InvalidArgument,
    NoEngine,
    ResourceInUse,
    ResourceQuotaExceeded,
    TooManyCommands,
    UnknownOperation,
    UnknownQueue,
)
from tartlet_control.calls.queue import Faulty
from tartlet_control.calls.registry import PARSERS, parse
from tartlet_control.core.lifecycle import Lifecycle
from tartlet_control.core.queue_runner import QueueRunner, was_told
from tartlet_control.core.shared_ops import SHARED_OPS, SharedOps
from tartlet_control.order.expecting import expect
from tartlet_control.tables.ledger import EMBEDS, PAGES, SLOTS
from tartlet_control.tables.models import Models
from tartlet_control.tables.outbox import CANCELLED, RESULT
from tartlet_control.tables.programs import Command, CommandQueue, Place, ProgramState

MAX_QUEUES: Final = 1024
"""Command queues a program may have."""
MAX_WAITING_BYTES: Final = 32 << 20
"""Limit of the arguments of a program's waiting commands. In memory they take several times as much."""
_LARGE_BYTES: Final = 32 << 10
"""The bytes of smaller commands aren't counted: the limit on their number bounds them."""
_USAGE_JSON: Final = (
    b'{"pages":%d,"embeds":%d,"slots":%d,"page_limit":%d,"free_pages":%d,"computed_tokens":%d,"cached_tokens":%d}'
)


_AtOnce = Callable[[Any, ProgramState, CommandQueue | None, Record, memoryview], None]


class CommandIntake:
    """Takes records of programs in."""

    def __init__(self, models: Models, lifecycle: Lifecycle, runner: QueueRunner) -> None:
        self._models = models
        self._lifecycle = lifecycle
        self._runner = runner
        self.shared = SharedOps(lifecycle)

    def submit(self, program: ProgramState, record: Record, payload: memoryview, now: float) -> None:
        """Take one record of a live program; `payload` is the record's own bytes."""
        program.commands += 1
        if record.op in SHARED_OPS:
            self.shared.run(program, record, payload)
            return
        queue = program.queues.get(record.queue)
        if record.op not in PARSERS:
            self._at_once(program, queue, record, payload, now)
            return
        if queue is None:
            try:
                queue = self._default_queue(program, record.queue)
            except TartletError as e:
                self._fail_at_once(program, record, e)
                return
        if program.in_flight >= program.command_limit:
            self._too_many(queue, record, now)
            return
        command: Command
        try:
            command = parse(queue, record, payload, now)
            if command.size > _LARGE_BYTES and not command.answer_sized:
                _check_waiting(program, command.size)
        except TartletError as e:
            command = Faulty(queue, record, now, e)
        self._runner.enqueue(queue, command)

    def _too_many(self, queue: CommandQueue, record: Record, now: float) -> None:
        """Fail the command that passes the limit; a program that goes on without listening is ended."""
        program = queue.program
        error = TooManyCommands(in_flight=program.in_flight, limit=program.command_limit)
        if program.in_flight >= 2 * program.command_limit + 64:
            self._lifecycle.kill(program, error)
            return
        self._runner.enqueue(queue, Faulty(queue, record, now, error))

    def _default_queue(self, program: ProgramState, queue_id: int) -> CommandQueue:
        """Make the queue 0, which needs no `create_queue`.

        Raises:
            UnknownQueue: another queue is meant, which was never created.
            UnknownModel, UnknownPool, NoEngine: the program's model isn't served.
        """
        if queue_id:
            raise UnknownQueue(id=queue_id)
        model = program.default_model or self._models.named(program.asked_model, program.reach)
        if model is None:
            raise NoEngine
        program.default_model = model
        return self._new_queue(program, 0, model.index)

    def _new_queue(self, program: ProgramState, queue_id: int, model_index: int) -> CommandQueue:
        model = self._models.at(model_index, program.reach)
        place = program.places.get(model_index)
        if place is None:
            place = program.places[model_index] = Place(program, model)
        queue = program.queues[queue_id] = CommandQueue(program, queue_id, place)
        queue.caches = program.caches
        if place.engine is not None:
            queue.lane = place.engine.new_lane()
        return queue

    # ---- operations that don't take a turn ------------------------------------------------------------------------

    def _at_once(
        self, program: ProgramState, queue: CommandQueue | None, record: Record, payload: memoryview, now: float
    ) -> None:
        operation = self.AT_ONCE.get(record.op)
        try:
            if operation is None:
                raise (UnknownQueue(id=record.queue) if queue is None else UnknownOperation(op=record.op))
            operation(self, program, queue, record, payload)
        except (InvalidArgument, UnknownOperation) as e:  # which fail in their queue, as a queued operation would
            queue = program.queues.get(record.queue)
            if queue is None:
                self._fail_at_once(program, record, e)
            else:
                self._runner.enqueue(queue, Faulty(queue, record, now, e))
        except TartletError as e:
            self._fail_at_once(program, record, e)

    def _create_queue(self, program: ProgramState, queue: CommandQueue | None, record: Record, _: memoryview) -> None:
        if queue is not None:
            raise ResourceInUse(kind="queue", id=record.queue)
        if len(program.queues) >= MAX_QUEUES:
            raise ResourceQuotaExceeded(held=len(program.queues), kind="queues", asked=1, limit=MAX_QUEUES)
        self._new_queue(program, record.queue, program.session.models.ours(record.a))
        self._answer(program, record)

    def _set_priority(self, program: ProgramState, queue: CommandQueue | None, record: Record, _: memoryview) -> None:
        queue = queue or self._default_queue(program, record.queue)
        if record.a not in Priority.__members__.values():
            raise InvalidArgument(argument="priority", detail=f"{record.a} is none")
        queue.priority = record.a
        self._runner.advance(queue)  # so that the batcher knows
        self._answer(program, record)

    def _cancel(self, program: ProgramState, queue: CommandQueue | None, record: Record, _: memoryview) -> None:
        """Drop the undispatched suffix from the ticket in `a` on, except what allocates and frees."""
        queue, first = queue or self._default_queue(program, record.queue), 0
        kept = []
        for command in queue.pending:
            if command.ticket < record.a or command.survives_cancel or was_told(command):
                kept.append(command)
                continue
            if queue.place.replay is not None:
                self._runner.gone(queue.place, command)
            first = first or command.ticket
            program.in_flight -= 1
            if command.awaited:
                program.session.outbox.deliver(program.handle, CANCELLED, 1, command.ticket, queue.id)
        queue.pending.clear()
        queue.pending.extend(kept)
        self._runner.advance(queue)
        if program.live:  # answered in any case: which commands were dropped is part of what the program did
            program.session.outbox.deliver(program.handle, RESULT, record.flags & 1, record.ticket, queue.id, first)

    def _usage(self, program: ProgramState, _: CommandQueue | None, record: Record, _payload: memoryview) -> None:
        self._runner.place_waiting()  # what it asked for before counts
        pages = embeds = slots = free = total = 0
        engines = []
        for place in program.places.values():
            if place.engine is not None:  # else it holds nothing there
                engines.append(place.engine)
                pages += place.num_held(PAGES)
                embeds += place.num_held(EMBEDS)
                slots += place.num_held(SLOTS)
        if not engines and program.default_model is not None:
            engines = program.default_model.usable(program.reach)
        for engine in engines:
            free += engine.pools[PAGES].num_available
            total += engine.spec.num_pages
        told = (pages, embeds, slots, program.page_limit or total, free)
        payload = _USAGE_JSON % (*told, program.computed_tokens, program.cached_tokens)
        self._answer(program, record, payload=payload)

    def _grammar(self, program: ProgramState, queue: CommandQueue | None, record: Record, payload: memoryview) -> None:
        try:
            self._runner.grammars.define(queue or self._default_queue(program, record.queue), record, payload)
        except TartletError as e:
            if not record.flags & 1:
                raise
            out = program.session.outbox  # the call fails alone, as one does whose grammar can't be compiled
            out.fail(program.handle, record.ticket, record.queue, e, answers=True)

    def _dealloc_grammar(
        self, program: ProgramState, queue: CommandQueue | None, record: Record, _: memoryview
    ) -> None:
        self._runner.grammars.free(queue or self._default_queue(program, record.queue), record)
        self._answer(program, record)

    def _exported(self, program: ProgramState, queue: CommandQueue | None, record: Record, _: memoryview) -> None:
        queue = queue or self._default_queue(program, record.queue)
        self._answer(program, record, payload=self._runner.names.listed(queue.place))

    def _set_cache(self, program: ProgramState, queue: CommandQueue | None, record: Record, _: memoryview) -> None:
        """Set whether a queue takes over cached rows; with `b`, all queues of the program and later ones too."""
        queue = queue or self._default_queue(program, record.queue)
        program.set_caches(queue, on=bool(record.a), everywhere=bool(record.b))
        self._answer(program, record)

    def _expect(self, program: ProgramState, _: CommandQueue | None, record: Record, _payload: memoryview) -> None:
        """Take a program's word on the tokens that it still needs. It names no queue, so nothing of it can fail."""
        expect(program.account, record.a)
        self._answer(program, record)

    AT_ONCE: ClassVar[dict[int, _AtOnce]] = {
        Op.CREATE_QUEUE: _create_queue,
        Op.SET_QUEUE_PRIORITY: _set_priority,
        Op.CANCEL: _cancel,
        Op.USAGE: _usage,
        Op.GRAMMAR: _grammar,
        Op.DEALLOC_GRAMMAR: _dealloc_grammar,
        Op.GET_ALL_EXPORTED_KVPAGES: _exported,
        Op.SET_PREFIX_CACHE: _set_cache,
        Op.EXPECT: _expect,
    }
    """Operations that act on arrival."""

    def _answer(self, program: ProgramState, record: Record, a: int = 0, payload: bytes = b"") -> None:
        if record.flags & 1:
            program.session.outbox.deliver(program.handle, RESULT, 1, record.ticket, record.queue, a, payload=payload)

    def _fail_at_once(self, program: ProgramState, record: Record, error: TartletError) -> None:
        """Fail outside of any queue: the error is named, and answered if awaited; nothing is poisoned."""
        out = program.session.outbox
        out.fail(program.handle, record.ticket, record.queue, error, answers=False)
        if record.flags & 1:
            out.fail(program.handle, record.ticket, record.queue, error, answers=True)


check_covers(
    [*PARSERS, *CommandIntake.AT_ONCE, *SHARED_OPS],
    CONTROL_OPS | WORKER_OPS,
    "tartlet_control.core.intake",
)


def _check_waiting(program: ProgramState, size: int) -> None:
    """Check that a large command fits beside the arguments that wait already.

    Raises:
        ResourceQuotaExceeded: it doesn't.
    """
    held = sum(
        command.size for queue in program.queues.values() for command in queue.pending if not command.answer_sized
    )
    if held + size > MAX_WAITING_BYTES:
        raise ResourceQuotaExceeded(held=held, kind="bytes of waiting commands", asked=size, limit=MAX_WAITING_BYTES)
