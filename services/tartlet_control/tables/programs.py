"""Programs as control knows them: their queues, the commands in these, what they hold, and which runtime runs them.

These classes refer to each other, so they stand in one module.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar, NamedTuple

from tartlet_common.abi import Priority, Record
from tartlet_common.capabilities import Grant
from tartlet_common.engine.pools import ANYWHERE
from tartlet_common.engine.spec import EngineSpec
from tartlet_common.errors.registry import TartletError
from tartlet_common.pauses import Pauses
from tartlet_common.rpc.resume import ResumableLink
from tartlet_control.order import book
from tartlet_control.tables.answers import Answers
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.grammars import PlaceGrammars
from tartlet_control.tables.ledger import PAGES
from tartlet_control.tables.lineage import Book
from tartlet_control.tables.models import ServedModel
from tartlet_control.tables.numbering import Numbering
from tartlet_control.tables.outbox import Outbox
from tartlet_control.tables.page_tables import PageTable, RowRefs

Held = tuple[dict[int, int], dict[int, int], dict[int, int]]
"""Virtual to physical ids of pages, embeds and slots, by pool index."""


class Command:
    """A command between its arrival and its answer. Each call has a subclass in `calls`.

    Ids in a command are virtual. They are translated when the command is dispatched, in the order of its queue: so a
    command can't reach what an earlier one of its queue has freed, and pages change hands safely. Lists of ids are
    plain Python lists, which cost a tenth of a numpy array for the handful of ids of a decode step.
    """

    __slots__ = ("arrived", "awaited", "outcome", "queue", "size", "ticket", "tokens")
    kind: ClassVar[int] = 0
    """The `Kind` of an engine call; 0 for a command that control executes at the head of its queue."""
    survives_cancel: ClassVar[bool] = False
    """Whether `cancel` leaves the command in its queue."""
    answer_sized: ClassVar[bool] = False
    """Whether `size` is that of the answer, because the answer is larger than the command."""

    def __init__(self, queue: CommandQueue, record: Record, arrived: float) -> None:
        self.queue = queue
        self.ticket = record.ticket
        self.awaited = record.flags & 1
        self.arrived = arrived
        self.tokens = 0  # its share of a batch's tokens
        self.size = 32  # its share of a step's frame, in bytes
        self.outcome: Any = None
        """Once it has ended well, a tuple (its values, if it is an engine call); else the worker's `Status`."""


@dataclass(frozen=True, slots=True)
class Poison:
    """The first failure of a queue. All later commands of the queue end with its error."""

    ticket: int
    error: TartletError


class Sync(NamedTuple):
    """A `synchronize`, or a fork in another queue, that waits for the commands dispatched before it."""

    at: int  # answered when `CommandQueue.settled` reaches this
    ticket: int  # 0: nobody awaits it
    reset_at: int  # it fails if a command with this number or a later one has failed
    command: Command
    """The `synchronize` or the share."""
    fork: Callable[[TartletError | None], None] | None = None
    """Takes the outcome for a fork, which has no answer of its own; None for a `synchronize`."""


class Place:
    """What one program holds on the engine of one model.

    `book` says what the engine's memory holds as far as commands have settled, and `log` has the commands since: those
    that were sent or executed and are not in the book yet, in order.
    """

    __slots__ = (
        "book", "engine", "grammars", "held", "home", "keeps", "kept", "kept_on", "last", "log", "long", "lost",
        "made_at_s", "model", "program", "recovery", "replay", "rows", "sent_before", "tables", "until",
    )  # fmt: skip

    def __init__(self, program: ProgramState, model: ServedModel) -> None:
        self.program = program
        self.model = model
        self.engine: EngineState | None = None  # until its first allocation or engine command
        self.sent_before = 0  # commands of its queues that were sent before it took the engine
        self.long = False  # whether its context there began with many tokens (Autellix, Algorithm 2)
        self.home = ""  # the engine where its last long context was; "": it had none
        self.last = ""  # the engine where its last context was
        self.held: Held = ({}, {}, {})
        self.tables: dict[int, PageTable] = {}
        """By the program's own numbers. Numbers below 0 are shares that a TABLE of another queue has not taken yet."""
        self.rows = RowRefs()  # the pages in these tables
        self.grammars = PlaceGrammars()
        self.book = Book()
        self.log: deque[Command] = deque()
        self.keeps: frozenset[int] = frozenset()  # adapters that it uses, though its model offers them no more
        self.lost: dict[int, str] = {}
        """Embeds whose content went with an engine and can't be made again, with the call that made it."""
        self.kept: dict[int, int] = {}  # host pages of its rows while it is suspended, by the identity of the row
        self.kept_on: EngineState | None = None  # whose worker has these host pages
        self.made_at_s = 0.0
        """The program's service up to which its state isn't dropped again: it was made again not long ago."""
        self.recovery: Recovery | None = None
        """Set while the state is brought to another engine: no command of the program's own is sent or executed."""
        self.replay: Replay | None = None  # while commands that another engine executed before are executed again
        self.until: dict[CommandQueue, int] = {}
        """How many commands of each queue have settled once that is done, of a program on trial."""

    def own_queue(self) -> CommandQueue:
        """Return control's own queue of the place, for commands that are none of the program's."""
        number = -1 - self.model.index
        queue = self.program.queues.get(number)
        if queue is None:
            queue = self.program.queues[number] = CommandQueue(self.program, number, self)
        return queue

    def forget(self) -> None:
        """Drop what refers to the program's commands, because the program is gone."""
        self.log.clear()
        self.until.clear()
        self.replay = self.recovery = None

    @property
    def num_rows(self) -> int:
        """The number of pages in tables, each counted once."""
        return len(self.rows)

    def num_held(self, pool: int) -> int:
        """Return how many things of a pool the program holds here; a page that several tables share counts once."""
        return len(self.held[pool]) + (self.num_rows if pool == PAGES else 0)

    def ids_held(self, pool: int) -> list[int]:
        """Return the physical ids of what the program holds here of a pool, each once."""
        return [*self.held[pool].values(), *(self.rows if pool == PAGES else ())]


class Recovery:
    """The way of a place's state to another engine."""

    __slots__ = ("cause", "gave_way", "home", "need", "owed", "since_s", "spec", "suspect", "to", "told", "until")

    def __init__(self, spec: EngineSpec, cause: TartletError, since_s: float) -> None:
        self.spec = spec  # of the engine that held the state
        self.cause = cause  # how the program ends if no engine takes the state
        self.since_s = since_s
        self.suspect = False  # the engine died while it computed for the program
        self.gave_way: EngineState | None = None  # the engine on which others needed its memory
        self.to: EngineState | None = None  # the engine that it moves to; None: any
        self.home = ""  # the id of the engine that had the state before control died
        self.told = False  # the runtime was told that the program stands still
        self.need = (0, 0, 0)  # what the state takes of each pool
        self.owed = 0  # tokens that it was expected to compute again when it gave way
        self.until: dict[CommandQueue, int] = {}
        """How many commands of each queue have settled once all that the dead engine had were executed again."""


class Replay:
    """Commands that are executed a second time, in the order in which they were executed first.

    Control's commands change what all queues of a program hold. So each waits for all commands before it, and a
    `Barrier` lets an engine command wait for those of other queues.
    """

    __slots__ = ("_left", "_turn", "_turns", "told")

    def __init__(self, commands: list[Command]) -> None:
        self.told: set[Command] = set()
        """Commands that were answered and counted the first time."""
        self._turn = 0  # commands of control that are done
        self._turns: dict[Command, int] = {}  # the commands of control before each
        self._left: dict[int, int] = {}  # engine commands that haven't been sent, by turn
        turn = 0
        for command in commands:
            self._turns[command] = turn
            if command.kind:
                self._left[turn] = self._left.get(turn, 0) + 1
            else:
                turn += 1

    def __bool__(self) -> bool:
        return bool(self._turns)

    @property
    def left(self) -> list[Command]:
        """The commands that haven't been executed or sent again, in order."""
        return [*self._turns]

    def turn(self, command: Command) -> int:
        """Return how many commands of control come before one."""
        return self._turns[command]

    def may_go(self, command: Command) -> bool:
        """Return whether a command of control has its turn."""
        turn = self._turns.get(command)
        return turn is None or (turn <= self._turn and not self._left.get(turn))

    def reached(self, turn: int) -> bool:
        """Return whether so many commands of control are done."""
        return self._turn >= turn

    def gone(self, command: Command) -> bool:
        """Note that a command was executed, sent or dropped. Returns whether others may have their turn now."""
        turn = self._turns.pop(command, None)
        if turn is None:
            return False
        if command.kind:
            self._left[turn] -= 1
            return not self._left[turn]
        self._turn += 1
        return True


class CommandQueue:
    """One command queue of a program: `pending` holds the commands that are not yet dispatched.

    Commands settle in the order in which they were dispatched, so `settled` numbers them.
    """

    __slots__ = (
        "answered_s", "caches", "cause", "dispatched", "failed", "id", "lane", "pending", "place", "poison",
        "priority", "program", "reset_at", "returns_s", "settled", "spec", "syncs", "thread",
    )  # fmt: skip

    def __init__(self, program: ProgramState, queue_id: int, place: Place) -> None:
        self.program = program
        self.id = queue_id
        self.place = place
        self.spec: EngineSpec = place.model.spec
        self.lane = -1  # the queue's number on its engine, given with the engine
        self.caches = True  # whether its tables take over rows of others, and others theirs
        self.priority = int(Priority.NORMAL)  # among the queues of its program
        self.thread = book.Thread(program.account)
        self.pending: deque[Command] = deque()
        self.dispatched = 0
        self.settled = 0
        self.answered_s = 0.0  # when its last command was answered; 0 once another has come
        self.returns_s = inf  # the usual time from an answer to the next command; inf before the first was seen
        self.reset_at = 0  # failures of commands dispatched before this number don't poison what follows a reset
        self.syncs: deque[Sync] = deque()
        self.failed: tuple[int, TartletError] | None = None  # number and error of the last command to fail
        self.poison: Poison | None = None
        self.cause: Poison | None = None  # the last poison, kept over a reset for commands still on the engine


class ProgramState:
    """One running program: what it asked for, its queues, what it holds and what it has used."""

    __slots__ = (
        "account",
        "alone",
        "answers",
        "asked_model",
        "awaits_history",
        "belongs_to",
        "cached_tokens",
        "caches",
        "command_limit",
        "commands",
        "computed_tokens",
        "created",
        "deaths",
        "default_model",
        "dispatched",
        "end_asked",
        "epoch",
        "failed",
        "goes_on",
        "grants",
        "handle",
        "id",
        "idempotency_key",
        "imports",
        "in_flight",
        "input_tokens",
        "journals",
        "killed",
        "live",
        "name",
        "num_pages",
        "page_limit",
        "pauses",
        "peak_pages",
        "places",
        "queues",
        "reach",
        "run",
        "sampled_tokens",
        "session",
        "span",
        "started_s",
        "tenant",
    )  # fmt: skip

    def __init__(
        self, program_id: str, handle: int, session: RuntimeSession, default_model: ServedModel | None
    ) -> None:
        self.id = program_id
        self.handle = handle
        self.session = session
        self.default_model = default_model
        self.asked_model = ""
        self.tenant = ""
        self.reach = ANYWHERE  # the engines that it may use
        self.grants: tuple[Grant, ...] = ()  # what limits the topics, names and programs that it may use
        self.idempotency_key = ""
        self.name = ""
        self.page_limit = 0  # 0: all pages of the engine
        self.command_limit = 4096
        self.belongs_to = ""  # the session whose account it shares; "" none
        self.account = book.Program(0)
        """What it used and waited for."""
        self.created = 0  # number in order of creation: contention ends the newest program
        self.started_s = 0.0
        self.queues: dict[int, CommandQueue] = {}
        self.places: dict[int, Place] = {}  # by model index
        self.in_flight = 0  # commands accepted and not ended
        self.dispatched = 0  # those of them that are on an engine
        self.num_pages = 0
        self.peak_pages = 0
        self.sampled_tokens = 0
        self.input_tokens = 0
        self.caches = True  # whether its new queues take over cached rows
        self.imports: dict[object, list[bytes]] = {}  # the digests of rows of names that it has imported
        self.computed_tokens = 0  # by engines for it, without what made lost state again
        self.cached_tokens = 0  # those that rows of other tables had, so they weren't computed
        self.commands = 0
        self.pauses = Pauses()
        self.answers: Answers | None = None  # to be repeated to another runtime; None: it can't begin again there
        self.epoch = 0  # of its journal's owner
        self.awaits_history = False  # what it has sent and was told is only known to its runtime, or to its journal
        self.run = b""  # names its run, of those that continue_as_new has begun
        self.goes_on = False  # another run follows this one
        self.journals = ""  # the name of the store with its journal, once its runtime is gone
        self.killed: TartletError | None = None
        self.failed = False  # as its runtime reports
        self.deaths = 0  # engines that died while they computed for it, since it last got an answer
        self.alone = 0  # those of them that computed for no other program
        self.end_asked = False
        self.live = True  # neither killed nor ended: its commands still count
        self.span: Any = None

    @property
    def has_begun(self) -> bool:
        """Whether its guest is known to have begun: then its journal is stored, if it has one."""
        return self.answers is None or self.answers.has_journal or self.commands > 0

    def set_caches(self, queue: CommandQueue, *, on: bool, everywhere: bool) -> None:
        """Set whether a queue takes over cached rows; `everywhere`: all queues of the program, and later ones too."""
        if everywhere:
            self.caches = on
        for each in [q for q in self.queues.values() if q.id >= 0] if everywhere else [queue]:
            each.caches = on

    @property
    def poisoned(self) -> Poison | None:
        """The cause of a queue that is poisoned now; None if no queue is."""
        return next((q.poison for q in self.queues.values() if q.poison is not None), None)


class RuntimeSession:
    """One incarnation of a runtime: its programs by handle, and what waits to be sent to it.

    The session outlives its stream: a runtime that comes back within the grace finds its programs as it left them.
    """

    __slots__ = (
        "address", "gone_since", "held", "incarnation", "journals", "link", "models", "outbox", "programs",
        "runtime_id", "stopping",
    )  # fmt: skip

    def __init__(self, runtime_id: str, incarnation: str, address: str) -> None:
        self.runtime_id = runtime_id
        self.incarnation = incarnation
        self.address = address
        self.programs: dict[int, ProgramState] = {}
        self.outbox = Outbox()
        self.models = Numbering()
        self.journals = ""
        """The name of its store of journals: runtimes with the same store can take its programs over."""
        self.stopping = False
        """Whether it hands its programs over."""
        self.gone_since: float | None = None  # None: connected
        self.link: ResumableLink[Any] | None = None
        """The numbered frames of both directions."""
        self.held = False
        """Whether so much waits for the runtime that no commands of its programs are dispatched."""
