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
from tartlet_common.engine.pools import ANYWHERE
from tartlet_common.engine.spec import EngineSpec
from tartlet_common.errors.registry import TartletError
from tartlet_common.rpc.resume import ResumableLink
from tartlet_control.order import book
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.grammars import Grammar
from tartlet_control.tables.ledger import PAGES
from tartlet_control.tables.models import ServedModel
from tartlet_control.tables.outbox import Outbox
from tartlet_control.tables.page_tables import PageTable

Held = tuple[dict[int, int], dict[int, int], dict[int, int]]
"""Virtual to physical ids of pages, embeds and slots, by pool index."""


class Command:
    """A command between its arrival and its answer. Each call has a subclass in `calls`.

    Ids in a command are virtual. They are translated when the command is dispatched, in the order of its queue: so a
    command can't reach what an earlier one of its queue has freed, and pages change hands safely. Lists of ids are
    plain Python lists, which cost a tenth of a numpy array for the handful of ids of a decode step.
    """

    __slots__ = ("arrived", "awaited", "queue", "size", "ticket", "tokens")
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
    fork: Callable[[TartletError | None], None] | None = None
    """Takes the outcome for a fork, which has no answer of its own; None for a `synchronize`."""


class Place:
    """What one program holds on the engine of one model."""

    __slots__ = ("engine", "grammars", "held", "model", "num_rows", "program", "tables")

    def __init__(self, program: ProgramState, model: ServedModel) -> None:
        self.program = program
        self.model = model
        self.engine: EngineState | None = None  # until its first allocation or engine command
        self.held: Held = ({}, {}, {})
        self.tables: dict[int, PageTable] = {}
        """By the program's own numbers. Numbers below 0 are shares that a TABLE of another queue has not taken yet."""
        self.num_rows = 0  # pages in tables, each counted once
        self.grammars: dict[int, Grammar] = {}  # by the program's own numbers

    def num_held(self, pool: int) -> int:
        """Return how many things of a pool the program holds here; a page that several tables share counts once."""
        return len(self.held[pool]) + (self.num_rows if pool == PAGES else 0)


class CommandQueue:
    """One command queue of a program: `pending` holds the commands that are not yet dispatched.

    Commands settle in the order in which they were dispatched, so `settled` numbers them.
    """

    __slots__ = (
        "answered_s", "cause", "dispatched", "failed", "id", "lane", "pending", "place", "poison", "priority",
        "program", "reset_at", "returns_s", "settled", "spec", "syncs", "thread",
    )  # fmt: skip

    def __init__(self, program: ProgramState, queue_id: int, place: Place) -> None:
        self.program = program
        self.id = queue_id
        self.place = place
        self.spec: EngineSpec = place.model.spec
        self.lane = -1  # the queue's number on its engine, given with the engine
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
        "account", "asked_model", "command_limit", "commands", "created", "default_model", "dispatched",
        "end_asked", "failed", "handle", "id", "idempotency_key", "in_flight", "input_tokens", "killed", "live",
        "name", "num_pages", "page_limit", "peak_pages", "places", "queues", "reach", "sampled_tokens",
        "session", "span", "started_s", "tenant",
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
        self.idempotency_key = ""
        self.name = ""
        self.page_limit = 0  # 0: all pages of the engine
        self.command_limit = 4096
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
        self.commands = 0
        self.killed: TartletError | None = None
        self.failed = False  # as its runtime reports
        self.end_asked = False
        self.live = True  # neither killed nor ended: its commands still count
        self.span: Any = None

    @property
    def poisoned(self) -> Poison | None:
        """The cause of a queue that is poisoned now; None if no queue is."""
        return next((q.poison for q in self.queues.values() if q.poison is not None), None)


class RuntimeSession:
    """One incarnation of a runtime: its programs by handle, and what waits to be sent to it.

    The session outlives its stream: a runtime that comes back within the grace finds its programs as it left them.
    """

    __slots__ = ("address", "gone_since", "held", "incarnation", "link", "outbox", "programs", "runtime_id")

    def __init__(self, runtime_id: str, incarnation: str, address: str) -> None:
        self.runtime_id = runtime_id
        self.incarnation = incarnation
        self.address = address
        self.programs: dict[int, ProgramState] = {}
        self.outbox = Outbox()
        self.gone_since: float | None = None  # None: connected
        self.link: ResumableLink[Any] | None = None
        """The numbered frames of both directions."""
        self.held = False
        """Whether so much waits for the runtime that no commands of its programs are dispatched."""
