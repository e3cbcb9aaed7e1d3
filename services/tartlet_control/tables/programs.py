"""Command queues and the programs they belong to: data that the core moves and the scheduler looks at."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from tartlet_common.abi import Priority
from tartlet_common.errors.registry import TartletError
from tartlet_control.calls.commands import Command

if TYPE_CHECKING:
    from tartlet_common.engine.spec import EngineSpec
    from tartlet_control.tables.engines import EngineState, Model
    from tartlet_control.tables.runtimes import RuntimeSession

Held = tuple[dict[int, int], dict[int, int], dict[int, int]]
"""Virtual to physical ids of pages, embeds and slots, by pool index."""


@dataclass(frozen=True, slots=True)
class Poison:
    """The first failure of a queue: what all later commands end with."""

    ticket: int
    error: TartletError


class Sync(NamedTuple):
    """A synchronize that waits for what was dispatched before it."""

    at: int  # answered when `settled` reaches this
    ticket: int  # 0: nobody awaits it
    reset_at: int  # of commands from this one on none may have failed


class Place:
    """What one program holds on the one engine of a model that it was placed on."""

    __slots__ = ("engine", "held", "model", "program")

    def __init__(self, program: Program, model: Model) -> None:
        self.program = program
        self.model = model
        self.engine: EngineState | None = None  # until its first allocation
        self.held: Held = ({}, {}, {})


class CommandQueue:
    """One command queue: `pending` undispatched commands (the head is never a control command for long), and counts.

    Commands settle in the order they were dispatched, so `settled` numbers them.
    """

    __slots__ = (
        "answered_s", "cause", "dispatched", "failed", "id", "lane", "pending", "place", "poison", "priority",
        "program", "reset_at", "returns_s", "settled", "spec", "syncs",
    )  # fmt: skip

    def __init__(self, program: Program, queue_id: int, place: Place) -> None:
        self.program = program
        self.id = queue_id
        self.place = place
        self.spec: EngineSpec = place.model.spec
        self.lane = -1  # assigned with the engine
        self.priority = int(Priority.NORMAL)
        self.pending: deque[Command] = deque()
        self.dispatched = 0
        self.settled = 0
        self.answered_s = 0.0  # when the last command was, if none has come since
        self.returns_s = inf  # how long until one comes, usually; inf before that was seen
        self.reset_at = 0  # failures of commands dispatched before this one don't poison what follows a reset
        self.syncs: deque[Sync] = deque()
        self.failed: tuple[int, TartletError] | None = None  # the last command to fail on the engine: its number, why
        self.poison: Poison | None = None
        self.cause: Poison | None = None  # the last poison, kept over a reset for those still on the engine


class Program:
    """One running program as control knows it."""

    __slots__ = (
        "asked_model", "command_limit", "commands", "created", "default_model", "dispatched", "end_asked", "failed",
        "handle", "id", "idempotency_key", "in_flight", "input_tokens", "killed", "live", "name", "num_pages",
        "page_limit", "peak_pages", "places", "queues", "sampled_tokens", "session", "span", "started_s", "tenant",
    )  # fmt: skip

    def __init__(self, program_id: str, handle: int, session: RuntimeSession, default_model: Model | None) -> None:
        self.id = program_id
        self.handle = handle
        self.session = session
        self.default_model = default_model
        self.asked_model = ""
        self.tenant = ""
        self.idempotency_key = ""
        self.name = ""
        self.page_limit = 0  # 0: the engine's all
        self.command_limit = 4096
        self.created = 0  # number in order of creation: contention ends the newest
        self.started_s = 0.0
        self.queues: dict[int, CommandQueue] = {}
        self.places: dict[int, Place] = {}  # by model index
        self.in_flight = 0  # commands accepted and not ended
        self.dispatched = 0  # of these, on an engine
        self.num_pages = 0
        self.peak_pages = 0
        self.sampled_tokens = 0
        self.input_tokens = 0
        self.commands = 0
        self.killed: TartletError | None = None
        self.failed = False  # so says its runtime
        self.end_asked = False
        self.live = True  # neither killed nor ended: its commands still count
        self.span: Any = None

    @property
    def poisoned(self) -> Poison | None:
        """The cause of a queue that is poisoned now."""
        return next((q.poison for q in self.queues.values() if q.poison is not None), None)
