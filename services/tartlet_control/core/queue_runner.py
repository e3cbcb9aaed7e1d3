"""Executes control's own commands at the heads of queues, and ends commands behind a failure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tartlet_common.abi import Op, Record
from tartlet_common.errors.base import TartletError
from tartlet_common.errors.registry import InternalError, NoEngine
from tartlet_control.calls.embed import EmbedTxt
from tartlet_control.calls.kv import Alloc, Dealloc
from tartlet_control.calls.names import Export, NameCall
from tartlet_control.calls.queue import Barrier, Faulty, Reset, Synchronize
from tartlet_control.calls.table_masks import DropRows
from tartlet_control.calls.tables import Share, Table
from tartlet_control.core.allocation import Allocator
from tartlet_control.core.grammar_ops import GrammarOps
from tartlet_control.core.lifecycle import Lifecycle
from tartlet_control.core.places.freeing import forget_freed
from tartlet_control.core.places.memory import Memory, Waits
from tartlet_control.core.places.placing import Placing
from tartlet_control.core.table_ops import TableOps
from tartlet_control.rebuild.logs import note, settle
from tartlet_control.rebuild.remaking import Remade, Remake, remake
from tartlet_control.sharing.name_ops import NameOps
from tartlet_control.sharing.reuse import look, offer
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.outbox import RESULT
from tartlet_control.tables.programs import Command, CommandQueue, Place, Poison, ProgramState, Replay, Sync


class QueueRunner:
    """Executes control's own commands, and leaves engine commands at the heads of queues."""

    def __init__(self, lifecycle: Lifecycle, placing: Placing, memory: Memory) -> None:
        self._lifecycle = lifecycle
        self._batchers = lifecycle.batchers
        self._placing = placing
        self._memory = memory
        self._allocator = Allocator(placing, memory)
        self.unplaced: dict[CommandQueue, None] = {}
        """Queues whose head waits for its place on an engine, in order of arrival."""
        self._places = False  # whether such queues get one now
        self.grammars = GrammarOps(self._allocator)
        self._tables = TableOps(self._allocator, self.advance)
        self._woken: deque[CommandQueue] = deque()  # queues to advance, by the call of `advance` that runs
        self._advancing = False
        self._filling: dict[CommandQueue, None] = {}  # queues with a prompt at their head
        self.caches = True
        """Whether programs take over rows of others, and leave theirs to others."""
        self.names: NameOps
        """Executes the calls on names."""
        self.on_remade: Callable[[Place], None]
        """Called when all commands that make the state of a place again have been sent."""
        self.wait_for_engine: Callable[[Place, float], bool]
        """Called with a place that finds no engine, and the time. Returns whether the place waits for one."""

    def place_of(self, program_id: str, engine: EngineState) -> Place:
        """Return the place of a program that runs on an engine."""
        return self._lifecycle.programs[program_id].places[engine.model_index]

    def enqueue(self, queue: CommandQueue, command: Command) -> None:
        """Add a command at the end of its queue."""
        queue.program.in_flight += 1
        if type(command) is Table:
            command = self._arrive(queue, command)
        self._append(queue, command)

    def _arrive(self, queue: CommandQueue, command: Table) -> Command:
        """Take note of a `table`; its share goes to the queue of its source. Returns what takes its place."""
        try:
            source_queue = self._tables.arrive(queue, command)
        except TartletError as e:
            record = Record(int(Op.TABLE), command.awaited, command.ticket, queue.id, 0, 0, 0, 0, 0)
            return Faulty(queue, record, command.arrived, e)
        if source_queue is not None and command.share is not None:
            self._append(source_queue, command.share)
        return command

    def _append(self, queue: CommandQueue, command: Command) -> None:
        queue.pending.append(command)
        if queue.place.recovery is not None:
            return
        if queue.poison is not None:
            self.drain_poisoned(queue)
            self.advance(queue)
        elif len(queue.pending) == 1:
            self.advance(queue)

    def look(self) -> None:
        """Let tables take over rows for the prompts that are about to be computed, now that all commands are there."""
        for queue in self._filling:
            if queue.pending and queue.poison is None and queue.place.recovery is None:
                look(queue, queue.pending[0].arrived, caches=queue.caches and self.caches)
        self._filling.clear()

    def _note_filling(self, queue: CommandQueue, head: Command) -> None:
        """Take note of a prompt at the head of a queue, if its table may take over rows."""
        if (
            type(head) is EmbedTxt
            and head.tokens > 1
            and not head.looked
            and ((queue.caches and self.caches) or queue.program.imports)
        ):
            self._filling[queue] = None

    # ---- heads of queues ----------------------------------------------------------------------------------------

    def advance(self, queue: CommandQueue) -> None:
        """Execute control's commands at the head; then the batcher has the queue exactly if an engine command waits.

        Queues whose head waited for this one follow, one after the other.
        """
        self._woken.append(queue)
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._woken:
                self._advance(self._woken.popleft())
        finally:
            self._advancing = False

    def _advance(self, queue: CommandQueue) -> None:
        pending, place = queue.pending, queue.place
        while pending and (place.recovery is None or queue.id < 0):  # a suspended program goes on later
            head = pending[0]
            if (place.engine is None or not (head.kind or place.rows)) and self._needs_place(place, head):
                if not self._places or not self._placing.leave(place):
                    self.unplaced[queue] = None  # until `place_waiting`
                    break
                if not self._place(queue):
                    continue
            if head.kind:
                self._ready(queue, head)
                return
            if not self._has_turn(place.replay, head):
                break
            pending.popleft()
            if not self._executed(queue, head):
                break
            if place.replay is not None:
                self.gone(place, head)
        engine = queue.place.engine
        if engine is not None and engine in self._batchers:
            self._batchers[engine].unready(queue)

    def _needs_place(self, place: Place, head: Command) -> bool:
        uses = head.kind or type(head) is Alloc or (type(head) is Table and head.new_rows)
        return bool(uses) and (place.engine is None or self._placing.goes_anew(place, head))

    def place_waiting(self) -> None:
        """Place programs that need an engine, once all that they have sent so far is known to their placement."""
        if not self.unplaced:
            return
        queues, self.unplaced, self._places = self.unplaced, {}, True
        self._placing.begin(max((q.pending[0].arrived for q in queues if q.pending), default=0.0))
        for queue in queues:
            if queue.program.live:
                self.advance(queue)
        self._places = False

    def _executed(self, queue: CommandQueue, head: Command) -> bool:
        """Execute a command, or keep it at the head of its queue until there is room for what it asks for."""
        try:
            self._execute(queue, head)
        except Waits:
            queue.pending.appendleft(head)
            if queue.place.recovery is None:  # else the queue goes on when the program does
                self._memory.stall(queue)
            return False
        return True

    def retry(self) -> None:
        """Let commands that wait for room try again."""
        self._memory.retry(self.advance)

    def _ready(self, queue: CommandQueue, head: Command) -> None:
        self._note_filling(queue, head)
        if queue.program.session.held:
            return  # `hold` looks at the queue again
        engine = queue.place.engine
        assert engine is not None
        self._batchers[engine].ready(queue, head.arrived)

    def _has_turn(self, replay: Replay | None, head: Command) -> bool:
        if type(head) is Export and not self._settled(head.queue, head):
            return False
        if type(head) is Table and head.share is not None and not head.share.done:
            return False
        if replay is None:
            return True
        return replay.reached(head.turn) if type(head) is Barrier else replay.may_go(head)

    def gone(self, place: Place, command: Command) -> None:
        """Note that a command which may be one of those that are executed again was executed, sent or dropped."""
        replay = place.replay
        if replay is None:
            return
        others = replay.gone(command)
        if not replay:
            place.replay = None
            forget_freed(place)
        if not others:
            return
        for queue in place.program.queues.values():
            if queue.place is place and queue.pending and not queue.pending[0].kind:
                self.advance(queue)

    def hold(self, program: ProgramState) -> None:
        """Dispatch nothing of a program whose session is held; of another, dispatch what waits."""
        for queue in program.queues.values():
            if program.session.held:
                engine = queue.place.engine
                if engine is not None and engine in self._batchers:
                    self._batchers[engine].unready(queue)
            else:
                self.advance(queue)

    def _place(self, queue: CommandQueue) -> bool:
        """Find an engine for the head's first use of the model. Returns False without one: the head waits, or fails."""
        try:
            self._allocator.engine_of(queue.place)
        except NoEngine as e:
            if not self.wait_for_engine(queue.place, queue.pending[0].arrived):
                self.poison(queue, queue.pending.popleft(), e)
                self.drain_poisoned(queue)
            return False
        return True

    def _execute(self, queue: CommandQueue, command: Command) -> None:
        if type(command) is Share:
            self._tables.share(command)
        elif type(command) is Synchronize:
            self._synchronize(queue, command)
        elif type(command) is Reset:
            self._reset(queue, command)
            self._done(queue.program, queue, command)
        elif type(command) is Remake:
            remake(command)
        elif type(command) is Remade:
            self.on_remade(queue.place)
        elif isinstance(command, NameCall):
            self._name(queue, command)
        elif type(command) is not Barrier:
            self._change(queue, command)

    def _settled(self, queue: CommandQueue, head: Export) -> bool:
        """Return whether all that the queue has sent has settled; else the queue is advanced again once it has."""
        if queue.settled == queue.dispatched:
            return True
        if not any(sync.command is head for sync in queue.syncs):
            queue.syncs.append(Sync(queue.dispatched, 0, queue.reset_at, head, lambda _: self.advance(queue)))
        return False

    def _name(self, queue: CommandQueue, command: NameCall) -> None:
        """Execute a call on a name. An awaited one fails alone, without poisoning the queue."""
        program, out = queue.program, queue.program.session.outbox
        try:
            a, b, payload = self.names.run(queue.place, command)
        except TartletError as e:
            if not command.awaited:
                self.poison(queue, command, e)
                self.drain_poisoned(queue)
                return
            program.in_flight -= 1
            out.fail(program.handle, command.ticket, queue.id, e, answers=True)
            return
        program.in_flight -= 1
        if command.awaited:
            out.deliver(program.handle, RESULT, 1, command.ticket, queue.id, a, b, payload=payload)

    def _synchronize(self, queue: CommandQueue, command: Synchronize) -> None:
        if queue.settled == queue.dispatched:
            self._done(queue.program, queue, command)
            return
        ticket = command.ticket if command.awaited else 0
        queue.syncs.append(Sync(queue.dispatched, ticket, queue.reset_at, command))
        queue.place.log.append(command)

    def _change(self, queue: CommandQueue, command: Command) -> None:
        """Execute a command that changes what the program holds."""
        try:
            if type(command) is Alloc:
                if not self._allocator.alloc(queue, command):
                    return
            elif type(command) is Dealloc:
                note(queue.place, command)  # which frees what it can, even if it fails
                self._allocator.dealloc(queue, command)
            elif type(command) is Table:
                command.shrunk = False
                if not command.keep_tokens and queue.caches and self.caches:
                    settle(queue.place)
                    offer(queue.place, command.table)
                if not self._tables.execute(queue, command):
                    return
            elif type(command) is DropRows:
                self._tables.drop(queue, command)
            else:
                assert type(command) is Faulty
                raise command.error
        except TartletError as e:
            self.poison(queue, command, e)
            self.drain_poisoned(queue)
            return
        if command.outcome is None:
            note(queue.place, command)
        self._done(queue.program, queue, command)

    def _done(self, program: ProgramState, queue: CommandQueue, command: Command) -> None:
        if was_told(command):
            return
        program.in_flight -= 1
        if command.awaited:
            program.session.outbox.deliver(program.handle, RESULT, 1, command.ticket, queue.id)

    def _reset(self, queue: CommandQueue, command: Reset) -> None:
        note(queue.place, command)
        queue.poison = None
        queue.reset_at = queue.dispatched
        engine = queue.place.engine
        if engine is not None:
            engine.reset_lanes.add(queue.lane)

    # ---- failure ------------------------------------------------------------------------------------------------

    def poison(self, queue: CommandQueue, command: Command, error: TartletError, *, on_engine: bool = False) -> None:
        """Fail the first command of a queue: name it and answer it. `drain_poisoned` ends the commands behind it.

        `on_engine`: the command failed there. Other failures are logged: if the engine is lost, they come again.
        """
        if queue.id < 0:  # control's own: it makes the program's state again
            self._lifecycle.kill(queue.program, error)
            return
        queue.poison = queue.cause = Poison(command.ticket, error)
        program = queue.program
        if not on_engine:
            record = Record(0, 0, command.ticket, queue.id, 0, 0, 0, 0, 0)
            note(queue.place, Faulty(queue, record, command.arrived, error))
        if was_told(command):
            return
        program.in_flight -= 1
        if not program.live:
            return
        out = program.session.outbox
        out.fail(program.handle, command.ticket, queue.id, error, answers=False)
        if command.awaited:
            out.fail(program.handle, command.ticket, queue.id, error, answers=True)

    def refuse(self, command: Command) -> None:
        """End a command behind a failed command of its queue, without effect."""
        if was_told(command):
            return
        queue = command.queue
        program = queue.program
        program.in_flight -= 1
        if command.awaited and program.live:
            cause = queue.cause.error if queue.cause else InternalError(detail="refused without a cause")
            program.session.outbox.fail(program.handle, command.ticket, queue.id, cause, answers=True)

    def drain_poisoned(self, queue: CommandQueue) -> None:
        """End the undispatched commands of a poisoned queue up to a reset. Commands that free still take effect."""
        pending, program = queue.pending, queue.program
        while pending and queue.place.recovery is None:
            command = pending.popleft()
            if type(command) is Dealloc:
                note(queue.place, command)
                held = queue.place.held[command.pool]
                self._allocator.free(queue, command.pool, [v for v in command.ids if v in held])
                self._done(program, queue, command)
            elif type(command) is Table:
                command.shrunk = True
                note(queue.place, command)
                self._tables.shrink(queue, command)
                if command.new_rows or command.source != command.table:
                    self.refuse(command)
                else:
                    self._done(program, queue, command)
            elif type(command) is Share:
                cause = queue.cause
                assert cause is not None, "a queue that is drained has a cause"
                self._tables.refuse_share(command, cause.error)
            elif type(command) is Reset:
                self._reset(queue, command)
                self._done(program, queue, command)
                self.gone(queue.place, command)
                return
            elif type(command) is not Barrier:
                self.refuse(command)
            self.gone(queue.place, command)


def was_told(command: Command) -> bool:
    """Return whether a command was answered and counted before an engine was lost, and is executed again."""
    replay = command.queue.place.replay
    return replay is not None and command in replay.told
