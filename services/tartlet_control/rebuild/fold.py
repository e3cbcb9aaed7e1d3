"""Folds what a program submitted and was told into the book that control had of the program.

A control that starts after another one has died gets both from the program's runtime. All that is known to have ended
is noted in the program's books. All else goes into the logs, as if an engine had died with it, so
`suspension.undo` queues it again: executing a command a second time has the same effect as executing it once, because
what it reads is then as it was before.

What is known to have ended follows from answers. Commands of one queue are sent in their order and engines settle them
in this order, so the answer to an engine's command, or to a `synchronize`, says that all earlier commands of its queue
have ended. A failure says less: control may find it while earlier commands are still on the engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tartlet_common.abi import Op, Record
from tartlet_common.engine.step import Status
from tartlet_common.errors.base import TartletError
from tartlet_common.errors.registry import InvalidArgument, MalformedSubmission, UnknownResource
from tartlet_control.calls.kv import Alloc, Dealloc
from tartlet_control.calls.names import NameCall
from tartlet_control.calls.output import Sample
from tartlet_control.calls.queue import Faulty, Reset, Synchronize
from tartlet_control.calls.registry import BY_KIND, PARSERS, parse
from tartlet_control.calls.tables import Share, Table
from tartlet_control.rebuild import notes
from tartlet_control.rebuild.finding import reads_ended, refusal
from tartlet_control.rebuild.grammars import note_grammar
from tartlet_control.rebuild.histories import Answers, Item, Sent, answers_of, fails_in_queue, source_of
from tartlet_control.rebuild.logs import DONE
from tartlet_control.rebuild.used_adapters import ANY
from tartlet_control.tables.models import ServedModel
from tartlet_control.tables.outbox import CANCELLED, FAILURE, RESULT, SKIPPED
from tartlet_control.tables.programs import Command, CommandQueue, Place, Poison, ProgramState
from tartlet_control.tables.shared.topics import Subscribed

_SKIPPED: Final = int(Status.SKIPPED)
_ON_QUEUES: Final = {Op.CANCEL, Op.SET_QUEUE_PRIORITY, Op.SET_PREFIX_CACHE, Op.GRAMMAR, Op.DEALLOC_GRAMMAR}
"""Calls that act on arrival and that name a queue, which exists from then on if it is the default one."""


class Owed(NamedTuple):
    """An answer that the program has not got, of a command that has ended."""

    event: int
    ticket: int
    queue: int
    a: int = 0
    error: TartletError | None = None
    awaited: int = 1


@dataclass(slots=True)
class Folded:
    """What a fold found beside the program's queues, books and logs."""

    owed: list[Owed] = field(default_factory=list)
    again: list[Sent] = field(default_factory=list)
    """Records that act on arrival and weren't answered: they are submitted anew, in order."""
    subscriptions: dict[int, Subscribed] = field(default_factory=dict)
    """The program's subscriptions, by its own numbers."""


def fold(
    program: ProgramState,
    commands: Iterable[Sent],
    answers: Iterable[Sent],
    model_at: Callable[[int], ServedModel],
    *,
    folded: Folded | None = None,
    now: float = 0.0,
) -> Folded:
    """Give a program, which is new or as a checkpoint left it, the state that it had in another control.

    Args:
        program: gets queues, places with books and logs, and counters.
        commands: the program's records, in the order of their submission.
        answers: the records that control sent to the program, in order.
        model_at: returns the model with a number; raises UnknownModel.
        folded: what the checkpoint says.
        now: seconds on control's clock.

    Raises:
        TartletError: the records don't fit together.
    """
    folding = _Folding(program, answers_of(answers), model_at, folded or Folded(), now)
    items = [folding.read(at, record, payload) for at, (record, payload) in enumerate(commands)]
    folding.prove(items)
    for item in items:
        folding.take(item)
    return folding.folded


class _Folding:
    """The state of a fold."""

    def __init__(
        self,
        program: ProgramState,
        answers: Answers,
        model_at: Callable[[int], ServedModel],
        folded: Folded,
        now: float,
    ) -> None:
        self._program = program
        self._answers = answers
        self._model_at = model_at
        self.folded = folded
        self._now = now
        self._ended: dict[CommandQueue, int] = {}  # the last item of each queue that is known to have ended
        self._blocked: set[CommandQueue] = set()  # queues with something in the log
        self._claims = {n: line.queue_id for place in program.places.values() for n, line in place.book.tables.items()}

    # ---- reading ------------------------------------------------------------------------------------------------

    def read(self, at: int, record: Record, payload: memoryview) -> Item:
        """Read the next record. Queues and claims on tables are as at its submission."""
        item = Item(at, record, payload, self._answers.of(record.ticket))
        program = self._program
        queue = program.queues.get(record.queue)
        if queue is None and record.op == Op.CREATE_QUEUE and item.told.named is None:
            try:
                self._make_queue(record.queue, self._model_at(record.a))
            except TartletError:  # it failed, or will
                return item
            item.source = program.queues[record.queue]  # so that `take` knows that it was made
        elif record.op in PARSERS or record.op in _ON_QUEUES:
            queue = queue or self._default_queue(record.queue)
            if queue is not None and record.op in PARSERS:
                self._read_command(item, queue)
            elif queue is not None and (error := fails_in_queue(item)) is not None:
                item.command = Faulty(queue, record, self._now, error)
            elif queue is not None and record.op in {Op.GRAMMAR, Op.DEALLOC_GRAMMAR}:  # here: samples name them
                note_grammar(item, queue)
            elif queue is not None and record.op == Op.SET_PREFIX_CACHE:  # here: queues that come later know it
                program.set_caches(queue, on=bool(record.a), everywhere=bool(record.b))
        return item

    def _default_queue(self, queue_id: int) -> CommandQueue | None:
        model = self._program.default_model
        return None if queue_id or model is None else self._make_queue(0, model)

    def _make_queue(self, queue_id: int, model: ServedModel) -> CommandQueue:
        program = self._program
        place = program.places.get(model.index)
        if place is None:
            place = program.places[model.index] = Place(program, model)
            place.keeps = ANY  # an adapter may have been retired since
        queue = program.queues[queue_id] = CommandQueue(program, queue_id, place)
        queue.caches = program.caches
        return queue

    def _read_command(self, item: Item, queue: CommandQueue) -> None:
        record, told = item.record, item.told
        try:
            if told.named is not None:
                raise told.named
            item.command = parse(queue, record, item.payload, self._now)
            if type(item.command) is Table:
                self._claim(item, queue)
        except TartletError as e:
            item.command = Faulty(queue, record, self._now, e)
            if isinstance(e, UnknownResource) and record.op in {Op.DEALLOC_EMB, Op.DEALLOC_SLOT, Op.DEALLOC_KVPAGE}:
                self._frees(item, queue)  # what it could

    @staticmethod
    def _frees(item: Item, queue: CommandQueue) -> None:
        try:
            item.freed = parse(queue, item.record, item.payload, 0.0)
        except TartletError:
            return

    def _claim(self, item: Item, queue: CommandQueue) -> None:
        """Note to which queue a table belongs from here on.

        Raises:
            TartletError: it belongs to another one, or there is no such source.
        """
        record, claims = item.record, self._claims
        owner = claims.setdefault(record.a, queue.id)
        if owner != queue.id:
            raise InvalidArgument(argument="table", detail=f"{record.a} belongs to queue {owner}")
        source = source_of(record, item.payload)
        if source is not None and source != record.a:
            item.source = self._program.queues.get(claims.get(source, -1))
            if item.source is queue:
                item.source = None
        elif record.b < queue.spec.page_size and not record.c:
            del claims[record.a]

    # ---- what has ended -----------------------------------------------------------------------------------------

    def prove(self, items: list[Item]) -> None:
        """Find how far the commands of each queue are known to have ended, and which ones were dropped."""
        for item in items:
            if item.record.op == Op.CANCEL and item.told.value is not None and item.told.value.a:
                self._drop(items, item, item.told.value.a)
        for item in reversed(items):
            command, told = item.command, item.told
            if command is None:
                continue
            queue = command.queue
            settled = told.value is not None or told.skipped
            if settled and (command.kind or type(command) is Synchronize):
                self._ended[queue] = max(self._ended.get(queue, -1), item.at)
            executed = told.value is not None or item.at <= self._ended.get(queue, -1)
            if type(command) is Table and item.source is not None and executed:
                self._ended[item.source] = max(self._ended.get(item.source, -1), item.at)

    @staticmethod
    def _drop(items: list[Item], cancel: Item, first: int) -> None:
        for item in items[: cancel.at]:
            command, failed = item.command, item.told.named is not None  # one that failed had survived the cancel
            if command is not None and command.queue.id == cancel.record.queue and not command.survives_cancel:
                item.dropped |= first <= item.record.ticket and not failed

    # ---- taking -------------------------------------------------------------------------------------------------

    def take(self, item: Item) -> None:
        """Note a record that has ended, or log it."""
        program, command = self._program, item.command
        program.commands += 1
        if command is None:
            self._at_once(item)
        elif item.dropped:
            self._owe(item, CANCELLED)
        elif command.kind and command.queue.poison is None:
            self._engine_command(item, command)
        elif command.kind:
            self._refuse(item, command)
        else:
            self._control_command(item, command)

    def _owe(self, item: Item, event: int, error: TartletError | None = None, a: int = 0) -> None:
        record = item.record
        if record.flags & 1 and not item.told.answered:
            self.folded.owed.append(Owed(event, record.ticket, record.queue, a, error))

    def _refuse(self, item: Item, command: Command) -> None:
        cause = command.queue.poison
        assert cause is not None
        self._owe(item, FAILURE, cause.error)

    def _log(self, command: Command, *, told: bool = False) -> None:
        command.outcome = DONE if told else None
        command.queue.place.log.append(command)
        self._blocked.add(command.queue)

    def _note(self, command: Command, outcome: Any = DONE) -> None:
        command.outcome = outcome
        notes.settle(command.queue.place.book, deque([command]))

    def _engine_command(self, item: Item, command: Command) -> None:
        queue, told = command.queue, item.told
        if told.refused or told.cancelled:  # behind a failure that is in the log
            return
        if item.at > self._ended.get(queue, -1):
            self._log(command)
            return
        self._find(command)
        book = queue.place.book
        if reads_ended(book, command):
            self._note(command, _SKIPPED)
            self._owe(item, SKIPPED)
            return
        value = told.value
        if type(command) is Sample and value is not None and value.a >= queue.spec.vocab_size:
            raise MalformedSubmission(detail=f"token {value.a} of a history is not in the vocabulary")
        self._note(command, DONE if value is None else (value.a, value.b, value.c, b""))
        if (count := BY_KIND[command.kind].count) is not None:
            count(self._program, command)

    def _find(self, command: Command) -> None:
        """Allocate early what a command names, if that is allocated in another queue that isn't known to have ended."""
        place = command.queue.place
        if not place.log:
            return
        book = place.book
        held: tuple[dict[int, Any], ...] = (book.pages, book.embeds, book.slots)
        for pool, ids in BY_KIND[command.kind].names(command):
            for missing in [i for i in ids if i not in held[pool]]:
                found = next((c for c in place.log if type(c) is Alloc and c.pool == pool and missing in c.ids), None)
                if found is not None:
                    place.log.remove(found)
                    self._note(found)

    def _control_command(self, item: Item, command: Command) -> None:
        queue, told = command.queue, item.told
        knows = told.answered or told.named is not None
        if queue.poison is not None:  # nothing waits in a poisoned queue
            self._in_poisoned(item, command)
            return
        shared = item.source is not None and item.at <= self._ended.get(item.source, -1)
        if queue not in self._blocked and (knows or shared or item.at <= self._ended.get(queue, -1)):
            self._execute(item, command)
            return
        if type(command) is Synchronize and knows:
            return
        if type(command) is Table and item.source is not None:
            self._share(command, item.source, done=shared)
        if type(command) is Faulty and knows:
            queue.cause = Poison(command.ticket, command.error)
        self._log(command, told=knows)

    def _share(self, command: Table, source: CommandQueue, *, done: bool) -> None:
        """Take the rows of a `table` that isn't known to have had its turn, or log that they are to be taken."""
        share = command.share = Share(source, command)
        if done or source not in self._blocked:  # all that was submitted to the source before has ended
            share.done, share.error = True, None if done else refusal(share)
            if share.error is None:
                self._note(share)
        else:
            share.outcome = DONE
            source.place.log.append(share)
            self._blocked.add(source)

    def _execute(self, item: Item, command: Command) -> None:
        queue = command.queue
        if type(command) is Faulty:
            if item.freed is not None:
                self._note(item.freed)
            queue.poison = queue.cause = Poison(command.ticket, command.error)
            self._note(command)
            self._owe(item, FAILURE, command.error)
            return
        if type(command) is Table and item.source is not None:
            command.share = Share(item.source, command)
            self._note(command.share)
        if type(command) is not Synchronize and not isinstance(command, NameCall):  # these change no book
            self._note(command)
        self._owe(item, RESULT)

    def _in_poisoned(self, item: Item, command: Command) -> None:
        """Note what a command of control's does in a poisoned queue."""
        queue = command.queue
        if type(command) is Reset:
            self._note(command)
            queue.poison = None
            self._owe(item, RESULT)
        elif type(command) is Dealloc:
            self._note(command)
            self._owe(item, RESULT)
        elif type(command) is Table:
            self._note(command)
            if command.new_rows or command.source != command.table:
                self._refuse(item, command)
            else:
                self._owe(item, RESULT)
        else:
            self._refuse(item, command)

    # ---- operations that act on arrival -------------------------------------------------------------------------

    def _at_once(self, item: Item) -> None:
        record, told, folded = item.record, item.told, self.folded
        queue = self._program.queues.get(record.queue)
        fails = told.named is not None or told.refused
        match record.op:
            case Op.CREATE_QUEUE if item.source is not None:
                self._owe(item, RESULT)
            case Op.SET_QUEUE_PRIORITY if queue is not None:
                queue.priority = record.a
                self._owe(item, RESULT)
            case Op.CANCEL if told.value is None and queue is not None:
                self._cancel(item, queue)
            case Op.SUBSCRIBE if not fails:
                folded.subscriptions[record.a] = Subscribed(bytes(item.payload))
                self._owe(item, RESULT)
            case Op.UNSUBSCRIBE if not fails:
                folded.subscriptions.pop(record.a, None)
                self._owe(item, RESULT)
            case Op.NEXT_MESSAGE if told.value is not None and record.a in folded.subscriptions:
                folded.subscriptions[record.a].taken += 1 + told.value.a
            case Op.GRAMMAR if item.noted:
                return  # which its compilation answers
            case Op.DEALLOC_GRAMMAR if item.noted:
                self._owe(item, RESULT)
            case _:
                if record.flags & 1 and not told.answered:
                    folded.again.append((record, item.payload))

    def _cancel(self, item: Item, queue: CommandQueue) -> None:
        """Do now what a `cancel` has not done, as far as is known: drop what isn't known to have ended."""
        first = 0
        log = queue.place.log
        for command in list(log):
            drops = command.queue is queue and command.outcome is None and command.ticket >= item.record.a
            if drops and not command.survives_cancel:
                log.remove(command)
                first = first or command.ticket
                told = self._answers.of(command.ticket)
                if command.awaited and not told.answered:
                    self.folded.owed.append(Owed(CANCELLED, command.ticket, queue.id))
        record = item.record
        self.folded.owed.append(Owed(RESULT, record.ticket, queue.id, first, awaited=record.flags & 1))
