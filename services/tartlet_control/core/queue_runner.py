"""What happens to a command in its queue, before it is dispatched and when it fails."""

from __future__ import annotations

from typing import Final

from tartlet_common.abi import Op, Priority
from tartlet_common.errors.registry import (
    InternalError,
    InvalidArgument,
    NoEngine,
    ResourceInUse,
    ResourceQuotaExceeded,
    TartletError,
    TooManyCommands,
    UnknownOperation,
    UnknownQueue,
)
from tartlet_control.calls.commands import GET_NEXT_DIST, Alloc, Command, Dealloc, Faulty, Reset, Synchronize
from tartlet_control.calls.records import QUEUED, Record, parse
from tartlet_control.core.allocation import Allocator
from tartlet_control.core.lifecycle import Lifecycle
from tartlet_control.tables.engines import Models
from tartlet_control.tables.ledger import PAGES
from tartlet_control.tables.outbox import CANCELLED, RESULT
from tartlet_control.tables.programs import CommandQueue, Place, Poison, Program, Sync

MAX_QUEUES: Final = 1024
"""Command queues a program may have."""
MAX_WAITING_BYTES: Final = 32 << 20
"""Arguments of a program's commands that wait for their turn; here they take several times that."""
_LARGE_BYTES: Final = 32 << 10
"""Smaller commands are bounded well enough by their number."""

_CREATE_QUEUE: Final = int(Op.CREATE_QUEUE)
_SET_PRIORITY: Final = int(Op.SET_QUEUE_PRIORITY)
_CANCEL: Final = int(Op.CANCEL)
_USAGE: Final = int(Op.USAGE)
_USAGE_JSON: Final = b'{"pages":%d,"embeds":%d,"slots":%d,"page_limit":%d,"free_pages":%d}'


class QueueMachine:
    """Takes records in, executes what is control's own, and leaves worker commands at the heads of queues."""

    def __init__(self, models: Models, lifecycle: Lifecycle) -> None:
        self.models = models
        self.lifecycle = lifecycle
        self._allocator = Allocator(lifecycle)

    # ---- arrival ------------------------------------------------------------------------------------------------

    def submit(self, program: Program, record: Record, payload: memoryview, now: float) -> None:
        """One record of a live program; `payload` is its own bytes."""
        op, flags, ticket, queue_id = record[:4]
        program.commands += 1
        queue = program.queues.get(queue_id)
        if op not in QUEUED:
            self._at_once(program, queue, record, now)
            return
        if queue is None:
            if queue_id:
                self._fail_at_once(program, record, UnknownQueue(id=queue_id))
                return
            try:
                queue = self._default_queue(program)
            except TartletError as e:
                self._fail_at_once(program, record, e)
                return
        if program.in_flight >= program.command_limit:
            self._too_many(queue, ticket, flags & 1, now)
            return
        command: Command
        try:
            command = parse(queue, now, record, payload)
            if command.size > _LARGE_BYTES and command.kind != GET_NEXT_DIST:
                _check_waiting(program, command.size)
        except TartletError as e:
            command = Faulty(queue, ticket, flags & 1, now, e)
        self._enqueue(queue, command)

    def _enqueue(self, queue: CommandQueue, command: Command) -> None:
        queue.program.in_flight += 1
        queue.pending.append(command)
        if queue.poison is not None:
            self.drain_poisoned(queue)
            self.advance(queue)
        elif len(queue.pending) == 1:
            self.advance(queue)

    def _too_many(self, queue: CommandQueue, ticket: int, awaited: int, now: float) -> None:
        """Fail the command that passes the limit; one who goes on without listening is ended."""
        program = queue.program
        error = TooManyCommands(in_flight=program.in_flight, limit=program.command_limit)
        if program.in_flight >= 2 * program.command_limit + 64:
            self.lifecycle.kill(program, error)
            return
        self._enqueue(queue, Faulty(queue, ticket, awaited, now, error))

    def _default_queue(self, program: Program) -> CommandQueue:
        model = program.default_model or self.models.named(program.asked_model)
        if model is None:
            raise NoEngine
        program.default_model = model
        return self._new_queue(program, 0, model.index)

    def _new_queue(self, program: Program, queue_id: int, model_index: int) -> CommandQueue:
        model = self.models.at(model_index)
        place = program.places.get(model_index)
        if place is None:
            place = program.places[model_index] = Place(program, model)
        queue = program.queues[queue_id] = CommandQueue(program, queue_id, place)
        if place.engine is not None:
            place.engine.new_lane(queue)
        return queue

    # ---- operations that don't take a turn ------------------------------------------------------------------------

    def _at_once(self, program: Program, queue: CommandQueue | None, record: Record, now: float) -> None:
        op, flags, ticket, queue_id, a = record[:5]
        if op == _USAGE:
            if flags & 1:
                self._usage(program, ticket, queue_id)
            return
        try:
            if op == _CREATE_QUEUE:
                self._create_queue(program, queue_id, a)
            elif queue is None and queue_id == 0 and op in (_SET_PRIORITY, _CANCEL):
                queue = self._default_queue(program)
        except TartletError as e:
            self._fail_at_once(program, record, e)
            return
        if op == _CREATE_QUEUE:
            self._answer(program, ticket, queue_id, flags)
        elif queue is None:
            self._fail_at_once(program, record, UnknownQueue(id=queue_id))
        elif op == _CANCEL:
            self._cancel(queue, a, ticket, flags)
        elif op == _SET_PRIORITY and a in Priority.__members__.values():
            self._set_priority(queue, a)
            self._answer(program, ticket, queue_id, flags)
        else:
            error = (
                InvalidArgument(argument="priority", detail=f"{a} is none")
                if op == _SET_PRIORITY
                else UnknownOperation(op=op)
            )
            self._enqueue(queue, Faulty(queue, ticket, flags & 1, now, error))

    def _create_queue(self, program: Program, queue_id: int, model_index: int) -> None:
        if queue_id in program.queues:
            raise ResourceInUse(kind="queue", id=queue_id)
        if len(program.queues) >= MAX_QUEUES:
            raise ResourceQuotaExceeded(held=len(program.queues), kind="queues", asked=1, limit=MAX_QUEUES)
        self._new_queue(program, queue_id, model_index)

    def _set_priority(self, queue: CommandQueue, priority: int) -> None:
        engine = queue.place.engine
        if engine is not None:
            engine.prioritised += (priority != 1) - (queue.priority != 1)
        queue.priority = priority

    def _usage(self, program: Program, ticket: int, queue_id: int) -> None:
        pages = embeds = slots = free = total = 0
        engines = []
        for place in program.places.values():
            if place.engine is not None:  # else it holds nothing there
                engines.append(place.engine)
                pages, embeds, slots = (n + len(ids) for n, ids in zip((pages, embeds, slots), place.held, strict=True))
        if not engines and program.default_model is not None:
            engines = program.default_model.engines
        for engine in engines:
            free += engine.pools[PAGES].num_free
            total += engine.spec.num_pages
        payload = _USAGE_JSON % (pages, embeds, slots, program.page_limit or total, free)
        program.session.outbox.deliver(program.handle, RESULT, 1, ticket, queue_id, 0, 0, 0, payload)

    def _cancel(self, queue: CommandQueue, since: int, ticket: int, flags: int) -> None:
        """Drop the undispatched suffix from ticket `since` on, except what allocates and frees."""
        program, first = queue.program, 0
        kept = []
        for command in queue.pending:
            if command.ticket < since or command.keeps or isinstance(command, Reset):
                kept.append(command)
                continue
            first = first or command.ticket
            program.in_flight -= 1
            if command.awaited:
                program.session.outbox.deliver(program.handle, CANCELLED, 1, command.ticket, queue.id)
        queue.pending.clear()
        queue.pending.extend(kept)
        self.advance(queue)
        if flags & 1 and program.live:
            program.session.outbox.deliver(program.handle, RESULT, 1, ticket, queue.id, first)

    def _answer(self, program: Program, ticket: int, queue_id: int, awaited: int) -> None:
        if awaited & 1:
            program.session.outbox.deliver(program.handle, RESULT, 1, ticket, queue_id)

    def _fail_at_once(self, program: Program, record: Record, error: TartletError) -> None:
        """A failure outside of any queue: named, and answered if awaited; nothing is poisoned."""
        out = program.session.outbox
        out.fail(program.handle, record[2], record[3], error, answers=False)
        if record[1] & 1:
            out.fail(program.handle, record[2], record[3], error, answers=True)

    # ---- heads of queues ----------------------------------------------------------------------------------------

    def advance(self, queue: CommandQueue) -> None:
        """Execute control commands at the head; then the queue is active exactly if a worker command waits there."""
        pending = queue.pending
        while pending:
            head = pending[0]
            if head.kind:
                if queue.lane < 0 and not self._place(queue):
                    continue
                engine = queue.place.engine
                assert engine is not None
                if queue.answered_s:
                    engine.returns.back(queue, head.arrived)
                engine.active[queue] = None
                return
            pending.popleft()
            self._execute(queue, head)
        engine = queue.place.engine
        if engine is not None:
            engine.active.pop(queue, None)

    def _place(self, queue: CommandQueue) -> bool:
        """Find an engine for the head's first use of the model; without one the head fails."""
        try:
            self._allocator.engine_of(queue.place)
        except NoEngine as e:
            self.poison(queue, queue.pending.popleft(), e)
            self.drain_poisoned(queue)
            return False
        return True

    def _execute(self, queue: CommandQueue, command: Command) -> None:
        program = queue.program
        if type(command) is Synchronize:
            if queue.settled < queue.dispatched:
                queue.syncs.append(Sync(queue.dispatched, command.ticket if command.awaited else 0, queue.reset_at))
                return  # still in flight
            self._done(program, queue, command)
        elif type(command) is Reset:
            self._reset(queue)
            self._done(program, queue, command)
        else:
            try:
                if type(command) is Alloc:
                    if not self._allocator.alloc(queue, command):
                        return
                elif type(command) is Dealloc:
                    self._allocator.dealloc(queue, command)
                else:
                    assert type(command) is Faulty
                    raise command.error
            except TartletError as e:
                self.poison(queue, command, e)
                self.drain_poisoned(queue)
                return
            self._done(program, queue, command)

    def _done(self, program: Program, queue: CommandQueue, command: Command) -> None:
        program.in_flight -= 1
        if command.awaited:
            program.session.outbox.deliver(program.handle, RESULT, 1, command.ticket, queue.id)

    def _reset(self, queue: CommandQueue) -> None:
        queue.poison = None
        queue.reset_at = queue.dispatched
        engine = queue.place.engine
        if engine is not None:
            engine.reset_lanes.add(queue.lane)

    # ---- failure ------------------------------------------------------------------------------------------------

    def poison(self, queue: CommandQueue, command: Command, error: TartletError) -> None:
        """`command` is the first of its queue to fail: name it, answer it. `drain_poisoned` ends those behind it."""
        queue.poison = queue.cause = Poison(command.ticket, error)
        program = queue.program
        program.in_flight -= 1
        if not program.live:
            return
        out = program.session.outbox
        out.fail(program.handle, command.ticket, queue.id, error, answers=False)
        if command.awaited:
            out.fail(program.handle, command.ticket, queue.id, error, answers=True)

    def refuse(self, command: Command) -> None:
        """End a command behind a failed one of its queue, without effect."""
        queue = command.queue
        program = queue.program
        program.in_flight -= 1
        if command.awaited and program.live:
            cause = queue.cause.error if queue.cause else InternalError(detail="refused without a cause")
            program.session.outbox.fail(program.handle, command.ticket, queue.id, cause, answers=True)

    def drain_poisoned(self, queue: CommandQueue) -> None:
        """End the undispatched commands of a poisoned queue up to a reset; what frees still takes effect."""
        pending, program = queue.pending, queue.program
        while pending:
            command = pending.popleft()
            if type(command) is Dealloc:
                held = queue.place.held[command.pool]
                self._allocator.free(queue, command.pool, [v for v in command.ids if v in held])
                self._done(program, queue, command)
            elif type(command) is Reset:
                self._reset(queue)
                self._done(program, queue, command)
                return
            else:
                self.refuse(command)


def _check_waiting(program: Program, size: int) -> None:
    held = sum(
        command.size
        for queue in program.queues.values()
        for command in queue.pending
        if command.kind != GET_NEXT_DIST  # its size is that of the answer
    )
    if held + size > MAX_WAITING_BYTES:
        raise ResourceQuotaExceeded(held=held, kind="bytes of waiting commands", asked=size, limit=MAX_WAITING_BYTES)
