"""How programs start and end in control. What a program holds is given back at once, whatever ends the program.

Pages may be given back while commands that use them are still on the engine. The engine executes steps in order, so
the next holder of a page meets the page in a later step, cleared.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tartlet_common.capabilities import Grant, SharedCeilings
from tartlet_common.engine.pools import Reach
from tartlet_common.errors.registry import (
    InvalidArgument,
    NoEngine,
    Overloaded,
    TartletError,
    UnknownModel,
    UnknownPool,
)
from tartlet_common.pauses import Pause, Pauses
from tartlet_common.rpc.tenancy import Scope
from tartlet_control.batching.batcher import Batcher
from tartlet_control.core.places.freeing import free_place
from tartlet_control.core.runtimes.families import Families
from tartlet_control.order.accounts import Accounts
from tartlet_control.order.sessions import ALONE, IDLE_S, Belonging
from tartlet_control.order.shares import has_place
from tartlet_control.order.sizes import History
from tartlet_control.rebuild import swapping
from tartlet_control.rebuild.histories import Sent
from tartlet_control.sharing.names import Names
from tartlet_control.sharing.reuse import offer_all
from tartlet_control.tables.answers import Answers
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.keys import RETURN_S, Keys
from tartlet_control.tables.models import Models, ServedModel
from tartlet_control.tables.outbox import Limbo, Settled
from tartlet_control.tables.programs import ProgramState, RuntimeSession
from tartlet_control.tables.shared.store import MemoryStore, Store, teller
from tartlet_control.tables.shared.topics import Topics

ENDED_KEPT: Final = 16_384
"""Ended programs whose runtime is remembered, because the runtime keeps their output for a while."""
_MAX_TEXT: Final = 1024


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A runtime's request to start a program (`ProgramStart` of control.proto)."""

    handle: int
    program_id: str
    tenant: str = ""
    idempotency_key: str = ""
    model: str = ""
    pool: str = ""
    page_limit: int = 0
    command_limit: int = 0
    name: str = ""
    digest: str = ""  # of its source
    trace: tuple[tuple[str, str], ...] = ()
    lost_state: bool = False
    running: bool = False  # announced, not asked for
    history: bool = False  # its history follows, of which its state is made again
    durable: bool = False
    epoch: int = 0  # of its journal's owner
    run: bytes = b""  # names the run, of those that continue_as_new has begun
    heard: int = 0  # how many of control's records its journal has
    adopts: bool = False
    lost: TartletError | None = None  # with `adopts`: why it can't begin again
    belonging: Belonging = ALONE  # to a session
    parent: str = ""  # the id of the program that has started it
    detached: bool = False  # it outlives its parent
    grants: tuple[Grant, ...] = ()  # what limits the topics, names and programs that it may use
    pauses: tuple[Pause, ...] = ()  # with `running`: the last times for which it stood still


@dataclass(frozen=True, slots=True)
class Kept:
    """A program that has ended and whose output its runtime keeps (`KeptProgram` of control.proto)."""

    program_id: str
    tenant: str = ""
    idempotency_key: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """A program that has ended, as long as its runtime keeps its output."""

    session: RuntimeSession
    tenant: str
    journals: str = ""  # where another runtime finds its journal, "" if it has none
    epoch: int = 0
    settled: Settled | None = None
    next_after: bytes = b""  # names the run that has ended, if the program goes on with another one


class Lifecycle:
    """Starts and ends programs, and gives back what they held."""

    def __init__(
        self,
        models: Models,
        *,
        max_programs: int,
        page_limit: int,
        command_limit: int,
        started_s: float = 0.0,
        weights: Mapping[str, float] | None = None,
        session_idle_s: float = IDLE_S,
    ) -> None:
        """Begin without programs.

        `started_s` says when this control started, by the injected clock, and `weights` are those of the tenants.
        """
        self.models = models
        self.batchers: dict[EngineState, Batcher] = {}  # of the engines that are there
        self.programs: dict[str, ProgramState] = {}
        self.topics: Topics = Topics()
        self.store: Store = MemoryStore()
        """The tenants' keys and values."""
        self.names: Names
        self.caches = True
        """Whether programs leave their rows to others."""
        self.history = History()
        """What past runs of each program used, for the order `gittins`."""
        self.accounts = Accounts(self.history, session_idle_s)
        self.ending: dict[ProgramState, None] = {}  # ended well, with commands still to be executed
        self.started = 0
        self.ended = 0
        self.nowhere = RuntimeSession("", "", "")
        """Stands for the runtime of programs that have none."""
        self.nowhere.outbox = Limbo()
        self.on_start: Callable[[ProgramState, StartRequest], None] = _nothing
        self.on_end: Callable[[ProgramState, TartletError | None], None] = _nothing
        self.on_restored: Callable[[ProgramState, Sequence[Sent], Sequence[Sent]], None] = _nothing
        """Called with the commands and the answers of which a program's state was made again."""
        self._max_programs = max_programs
        self._weights = weights or {}
        self._of_tenant: dict[str, int] = {}  # programs, by tenant
        self._page_limit = page_limit
        self._command_limit = command_limit
        self.keys = Keys(self.programs.__contains__, known_from_s=started_s + RETURN_S)
        self.ended_at: OrderedDict[str, Ended] = OrderedDict()  # by program id
        self.families = Families(self)
        self.ceilings = SharedCeilings()

    # ---- start --------------------------------------------------------------------------------------------------

    def start(self, session: RuntimeSession, request: StartRequest, now: float) -> str:
        """Record a program. Returns the id of the program that its idempotency key names already, "" for a new one.

        Raises:
            InvalidArgument: handle or id in use, or texts too long.
            UnknownModel, UnknownPool: no engine that it may use ever served the model, or none is of the pool.
            NoEngine: no engine of the model that it names is ready.
            Overloaded: too many programs.
            ParentEnded, NotAllowed: the program that has started it has ended, or may not start it.
        """
        self._check(session, request)
        if not request.running:  # else it runs, whatever the key names by now
            existing = self.keys.named(request.tenant, request.idempotency_key)
            if existing not in ("", request.program_id):  # else: it is asked for again, its start went unheard
                return existing
            self.families.check(request)
            self._check_place(request)
        program = ProgramState(request.program_id, request.handle, session, self._model_for(request))
        program.asked_model = request.model
        program.pauses = Pauses(request.pauses)
        program.reach = Reach.of(request.tenant, request.pool)
        ceiling = self.ceilings.of_tenant(request.tenant)
        program.grants = (*request.grants, ceiling) if ceiling.limits_sharing else request.grants
        program.tenant, program.name, program.idempotency_key = request.tenant, request.name, request.idempotency_key
        program.page_limit = _capped(request.page_limit, self._page_limit)
        program.command_limit = _capped(request.command_limit, self._command_limit)
        program.created, program.caches = self.started, self.caches
        program.started_s = now
        key = (request.tenant, request.name, request.digest)
        program.belongs_to = request.belonging.session
        program.account = self.accounts.begin(request.tenant, request.belonging, key, self.started, now)
        self.started += 1
        self.programs[program.id] = program
        self.ended_at.pop(program.id, None)  # of its run before
        self._of_tenant[program.tenant] = self._of_tenant.get(program.tenant, 0) + 1
        self.keys.add(request.tenant, request.idempotency_key, program.id)
        session.programs[program.handle] = program
        program.awaits_history = request.history
        program.run = request.run
        if request.durable:
            program.epoch = request.epoch
            program.answers = session.outbox.keeps[program.handle] = Answers(request.heard, has_journal=request.running)
        self.families.add(request)
        self.on_start(program, request)
        return ""

    def _model_for(self, request: StartRequest) -> ServedModel | None:
        try:
            reach = Reach.of(request.tenant, request.pool)
            model = self.models.named(request.model, reach)
        except (UnknownModel, UnknownPool):
            if request.running:  # its engines may be on their way back as well
                return None
            raise
        if request.model and not request.running and model is not None and not model.ready_for(reach):
            raise NoEngine  # one that names none may do without
        return model

    def _check(self, session: RuntimeSession, request: StartRequest) -> None:
        if request.handle in session.programs:
            raise InvalidArgument(argument="handle", detail=f"{request.handle} is in use")
        if not request.program_id or request.program_id in self.programs:
            raise InvalidArgument(argument="program_id", detail=f"{request.program_id!r} is empty or in use")
        names = (request.program_id, request.tenant, request.idempotency_key, request.name, request.digest)
        if max(map(len, (*names, request.model, request.pool))) > _MAX_TEXT:
            raise InvalidArgument(argument="ProgramStart", detail=f"a text is longer than {_MAX_TEXT} characters")

    def _check_place(self, request: StartRequest) -> None:
        before = self.ended_at.get(request.program_id)  # its next run never ends for its place, but counts for launches
        has_own = before is not None and bool(before.next_after)
        if not has_own and not has_place(self._of_tenant, request.tenant, self._max_programs, self._weights):
            raise Overloaded(what="control's program table", limit=self._max_programs)

    def locate(self, program_id: str, scope: Scope) -> tuple[str, int]:
        """Return the address of a program's runtime, and how many pages the program holds.

        The address is "" if no runtime has the program, or if `scope` may not see it.
        """
        program = self.programs.get(program_id)
        if program is not None:
            found, tenant = (program.session.address, program.num_pages), program.tenant
        else:
            ended = self.ended_at.get(program_id)
            found, tenant = ("" if ended is None else ended.session.address, 0), "" if ended is None else ended.tenant
        return found if scope.allows(tenant) else ("", 0)

    def remember(self, session: RuntimeSession, kept: Kept) -> None:
        """Remember that a runtime keeps the output of a program that has ended."""
        if kept.program_id not in self.programs:
            self._ended_where(kept.program_id, Ended(session, kept.tenant))
            self.keys.add(kept.tenant, kept.idempotency_key, kept.program_id)

    def forget_runtime(self, session: RuntimeSession) -> None:
        """Forget the outputs that a runtime kept, because it won't come back. Other runtimes may have the journals."""
        for program_id, ended in list(self.ended_at.items()):
            if ended.session is session and ended.journals:
                self.ended_at[program_id] = replace(ended, session=self.nowhere)
            elif ended.session is session:
                del self.ended_at[program_id]

    # ---- end ----------------------------------------------------------------------------------------------------

    def end(self, program: ProgramState, *, failed: bool) -> None:
        """Take the end of a program from its runtime.

        The last commands of a program that ended well are executed first, so that whether it leaves a poisoned queue
        doesn't depend on how far the engine was. The last commands of a failed program are dropped.
        """
        program.failed |= failed
        if program.live and not failed and program.in_flight:
            self.ending[program] = None
        else:
            self._end_now(program)

    def end_finished(self) -> None:
        """End the programs whose last commands have been answered by now."""
        for program in [p for p in self.ending if not p.in_flight]:
            self._end_now(program)

    def _end_now(self, program: ProgramState) -> None:
        if program.end_asked:
            return
        self.ending.pop(program, None)
        program.end_asked = True
        self.release(program)
        self.settle_if_done(program)

    def kill(self, program: ProgramState, error: TartletError) -> None:
        """End a program for a reason of ours; its runtime is told, and answers with its end."""
        if not program.live:
            return
        program.killed = error
        self.release(program)
        if program in self.ending:  # the runtime waits for its settlement already
            self._end_now(program)
        else:
            program.session.outbox.notices.kills.append((program.handle, error))

    def forget(self, program: ProgramState, error: TartletError | None) -> None:
        """Drop a program that nobody will end, because its runtime is gone."""
        if error is not None and program.killed is None:
            program.killed = error
        self.release(program)
        program.end_asked = False  # nobody waits for its settlement
        self.ending.pop(program, None)
        self._remove(program)

    def settle_if_done(self, program: ProgramState) -> None:
        """Tell the runtime once the last command of an ended program has left the engine.

        A runtime that has sent no command of the program doesn't wait for this. (The commands of a killed program are
        not counted.)
        """
        if not program.end_asked or program.dispatched or self.programs.get(program.id) is not program:
            return
        poison = program.poisoned
        settled = Settled(
            program.handle,
            None if poison is None else poison.error,
            program.peak_pages,
            program.sampled_tokens,
            program.input_tokens,
            program.commands,
        )
        if program.commands or program.killed is not None:
            program.session.outbox.notices.settled.append(settled)
        self._remove(program, settled)

    def _remove(self, program: ProgramState, settled: Settled | None = None) -> None:
        if self.programs.pop(program.id, None) is not None:
            self.ended += 1
            self._of_tenant[program.tenant] -= 1
            if not self._of_tenant[program.tenant]:
                del self._of_tenant[program.tenant]
            killed = program.killed is not None
            self.accounts.finish(program.tenant, program.belongs_to, program.account, killed=killed)
            if settled is not None or killed:
                self.names.ended(teller(program.id, program.run))
            if settled is not None:
                self.store.leave(teller(program.id, program.run))
            journals, next_after = "", b""
            if program.answers is not None and settled is not None:
                journals = program.journals or program.session.journals
                if program.goes_on and program.killed is None and settled.poisoned is None:
                    next_after = program.run
            ended = Ended(program.session, program.tenant, journals, program.epoch, settled, next_after)
            self._ended_where(program.id, ended)
            self.on_end(program, program.killed)
            self.families.ended(program.id, is_end=settled is not None or killed)
        if program.session.programs.get(program.handle) is program:
            del program.session.programs[program.handle]
            program.session.outbox.keeps.pop(program.handle, None)
        for place in program.places.values():
            place.forget()
        # they refer to the program, which should not wait for the garbage collector
        program.queues, program.places = {}, {}

    def _ended_where(self, program_id: str, ended: Ended) -> None:
        self.ended_at[program_id] = ended
        if len(self.ended_at) > ENDED_KEPT:
            self.ended_at.popitem(last=False)

    def release(self, program: ProgramState) -> None:
        """Give back all that a program holds, and drop its undispatched commands."""
        program.live = False
        self.topics.leave(program.id, teller(program.id, program.run))
        self.names.leave(program.id)
        program.in_flight = program.dispatched
        for queue in program.queues.values():
            queue.pending.clear()
            queue.syncs.clear()
            engine = queue.place.engine
            if engine is not None:
                if not queue.dispatched:  # the worker has never heard of it
                    engine.reset_lanes.discard(queue.lane)
                elif queue.cause is not None:  # nobody will reset it; the worker needn't remember it for ever
                    engine.reset_lanes.add(queue.lane)
                if engine in self.batchers:
                    self.batchers[engine].forget(queue)
        for place in program.places.values():
            swapping.forget(place)
            engine = place.engine
            if engine is None:
                continue
            if self.caches and place.recovery is None:
                offer_all(place)
            free_place(place, engine)
            place.tables.clear()
            place.grammars.clear()
        program.num_pages = 0

    # ---- engines that go away -----------------------------------------------------------------------------------

    def placed_on(self, engine: EngineState) -> list[ProgramState]:
        """Return the programs that are placed on an engine, in order of placement."""
        return [self.programs[program_id] for program_id in engine.program_ids]


def _capped(asked: int, most: int) -> int:
    """Return what a program asked for, at most `most`. For either, 0 stands for no limit."""
    return min(asked, most) if asked and most else asked or most


def _nothing(*_: Any) -> None:
    return
