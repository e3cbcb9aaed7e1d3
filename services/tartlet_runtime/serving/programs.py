"""The table of programs: admission, start, lookup, and ended programs whose output is kept."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from tartlet_common.clock import Clock
from tartlet_common.config.settings import RuntimeSettings
from tartlet_common.errors.registry import (
    Overloaded,
    Superseded,
    TartletError,
    Unavailable,
)
from tartlet_common.rpc.tenancy import EVERYONE, Scope
from tartlet_protos import common_pb2, control_pb2, programs_pb2
from tartlet_runtime.abi.limits import default_limits
from tartlet_runtime.answers.local_ops import LocalOps
from tartlet_runtime.answers.models import ModelTable
from tartlet_runtime.budget.ledger import Ledger, Use
from tartlet_runtime.forks.cutting import Past as Fork
from tartlet_runtime.forks.forked import begun
from tartlet_runtime.guests.native import NativeGuest, NativeServer
from tartlet_runtime.guests.sandboxed import WasmGuests
from tartlet_runtime.journal.journals import Journals
from tartlet_runtime.link.control_link import ControlLink
from tartlet_runtime.link.orphans import give_up, is_announced
from tartlet_runtime.program.driver import Driver
from tartlet_runtime.program.program import MakeGuest, Program
from tartlet_runtime.program.recovered import RecoveredProgram
from tartlet_runtime.program.spans import Spans
from tartlet_runtime.program.spec import ProgramSpec, State
from tartlet_runtime.program.world import World
from tartlet_runtime.serving.calls import Call
from tartlet_runtime.serving.continuing import Continuing
from tartlet_runtime.serving.ended import EndedPrograms
from tartlet_runtime.serving.listing import Place, info_of, page_of
from tartlet_runtime.serving.recording import Past, Recording
from tartlet_runtime.serving.reserving import Reserving
from tartlet_runtime.serving.starts import overdue, start_of

log = logging.getLogger(__name__)

_Source = common_pb2.Source


class ProgramTable:
    """All programs of this runtime. Wires itself to the link as `control_link.Programs`."""

    def __init__(  # noqa: PLR0913 - the parts that app wires together
        self,
        settings: RuntimeSettings,
        *,
        driver: Driver,
        link: ControlLink,
        models: ModelTable,
        ops: LocalOps,
        clock: Clock,
        native: NativeServer,
        wasm: WasmGuests | None,
        journals: Journals,
        ledger: Ledger,
    ) -> None:
        """`wasm` None: only native programs run (tests)."""
        self._settings = settings
        self.address = settings.advertise or settings.address
        self._driver = driver
        self._link = link
        self._models = models
        self.models_changed, self.models, self.models_told = models.update, models.announced, models.told
        self._clock = clock
        self._native = native
        self._wasm = wasm
        self._journals = journals
        self.ledger = ledger
        self._spans = Spans(scraped=bool(settings.health_address))
        self.limits = default_limits(settings)
        self.client_grace_s = settings.client_grace_s
        self.durability = partial(models.durability, default=settings.durability)
        """Of launches that ask for none (`specs.Durability`)."""
        self._live: dict[int, Program] = {}  # by handle
        self._by_id: dict[str, Program] = {}  # live and kept
        self._by_key: dict[tuple[str, str], Program] = {}  # tenant and idempotency key
        self._ended = EndedPrograms(settings, ledger, journals, self._forgotten)
        self._reserving = Reserving(ledger, wasm, self._ended)
        self._world = World(driver, link, ops, clock, self._on_ended, self._on_accepted, self._reserving.account)
        self._recording = Recording(journals, link, driver, self.identity)
        self._continuing = Continuing(self._recording, self._world, self._enter)
        self._next_handle = 1
        self._away_since: float | None = clock.now()
        self._stopping: Callable[[], TartletError] | None = None
        self.follow_elsewhere: Callable[[Call, int, str], None] = _nowhere
        self.take_over: Callable[..., None] = _nowhere  # (`control_link.Programs`)
        self.find_journals: Callable[[], None] = _nowhere
        link.programs = self

    # ---- lookup ----

    def get(self, handle: int) -> Program | None:
        """Return the live program of a handle."""
        return self._live.get(handle)

    def live(self) -> Iterable[Program]:
        """Return the programs that have not ended."""
        return self._live.values()

    def known(self, program_id: str, scope: Scope = EVERYONE) -> Program | None:
        """Return a live or kept program, or None if this runtime or this caller has no such program."""
        program = self._by_id.get(program_id)
        return program if program is not None and scope.allows(program.spec.tenant) else None

    def page(
        self, request: programs_pb2.ListRequest, scope: Scope, after: Place, room: int
    ) -> tuple[list[programs_pb2.ProgramInfo], Place | None]:
        """Return a page of programs behind `after`, oldest first, and where the next page begins."""
        now, unix_s = self._clock.now(), self._clock.unix_ns() / 1e9
        shown = (
            program
            for program in self._by_id.values()
            if (request.all or program.state is not State.ENDED) and scope.shows(program.spec.tenant, request.tenant)
        )
        return page_of(shown, after, room, lambda program: info_of(program, now, unix_s, self.address))

    @property
    def now_s(self) -> float:
        """Monotonic seconds of the clock that programs' times are of."""
        return self._clock.now()

    @property
    def unix_s(self) -> float:
        """The wall clock, seconds since the epoch."""
        return self._clock.unix_ns() / 1e9

    @property
    def num_live(self) -> int:
        """Programs that haven't ended."""
        return len(self._live)

    # ---- launch ----

    def maker(self, spec: ProgramSpec, recorded: str = "") -> MakeGuest | None:
        """Return what makes the program's guest, or None if its module must be compiled first (`compile`).

        Raises:
            StartFailed, InvalidSource: no such programs, or not this one, or not with the component that it began with.
        """
        if spec.language == _Source.NATIVE:
            return self._native.make_guest
        return self._wasm_guests().recorded(spec, recorded or self.identity(spec))

    async def compile(self, spec: ProgramSpec) -> MakeGuest:
        """Compile an uploaded module.

        Raises:
            CorruptModule, CompileTimeout, DiskFull: as they say.
        """
        return await self._wasm_guests().prepare(spec)

    def existing(self, tenant: str, key: str) -> Program | None:
        """Return the program that an idempotency key names, if this runtime has it."""
        return self._by_key.get((tenant, key)) if key else None

    def launch(
        self,
        spec: ProgramSpec,
        make_guest: MakeGuest,
        call: Call,
        index: int,
        *,
        attach: bool,
        fork: Fork | None = None,
    ) -> Program:
        """Enter a program, or a fork, and ask control to start it. `call` gets an answer when control has answered.

        Raises:
            Overloaded: this runtime is full.
            MemoryBudgetExceeded: the process's memory can't hold what the program reserves.
            DiskFull: there is no room for its journal.
        """
        self._check_room()
        reserved = self._reserving.take(spec)
        span = self._spans.start(spec.program_id, spec.name, spec.model, spec.trace)
        if span is not None:
            spec = replace(spec, trace=span.context())
        program = begun(fork, spec, self._take_handle(), self._world, make_guest, call.asked_s, span)
        program.reserved_bytes = reserved
        if spec.durable:
            with self._given_back(program):
                self._recording.open(program)
        self._answer_when_started(program, call, index, attach=attach)
        self._enter(program)
        return program

    def _check_room(self) -> None:
        if self._stopping is not None:
            raise self._stopping()
        if len(self._live) >= self._settings.capacity:
            raise Overloaded(what="this runtime", limit=self._settings.capacity)

    @contextlib.contextmanager
    def _given_back(self, program: Program) -> Iterator[None]:
        """Give back what a program has reserved if it can't be entered."""
        try:
            yield
        except TartletError as e:
            spec = program.spec
            self.ledger.give(Use.PROGRAMS, program.reserved_bytes)
            self._spans.end(program.span, self._models.known_name(spec.model, spec.reach), programs_pb2.Usage(), e)
            raise

    def _enter(self, program: Program) -> None:
        """Enter a program and ask control to start it."""
        spec = program.spec
        self._driver.starting += 1
        self._live[program.handle] = program
        self._by_id[spec.program_id] = program
        if spec.idempotency_key:
            self._by_key[spec.tenant, spec.idempotency_key] = program
        start = partial(self._link.start, start_of(program))
        start() if program.recorder is None else program.recorder.leave(start)

    # ---- programs of other runtimes ----

    @property
    def journals(self) -> str:
        """The name of the store of journals; "" while it isn't known (`control_link.Programs`)."""
        return self._recording.store_name

    def adopt(self, spec: ProgramSpec, make_guest: MakeGuest, past: Past, *, whole: bool) -> None:
        """Enter a program of another runtime, whose journal the store has given this one, and tell control.

        `whole`: as of `RecoveredProgram`.

        Raises:
            Overloaded: this runtime is full.
            MemoryBudgetExceeded: the process's memory can't hold what the program reserves.
        """
        self._check_room()
        reserved = self._reserving.take(spec)
        span = self._spans.start(spec.program_id, spec.name, spec.model, spec.trace)
        handle = self._take_handle()
        program = RecoveredProgram(spec, handle, self._world, make_guest, past.start_ns, past.rerun, span, whole=whole)
        program.reserved_bytes = reserved
        program.output.log.begin_at(past.since_offset)
        with self._given_back(program):
            self._recording.go_on(program, past)
        program.tie.expect(self.client_grace_s, tied=spec.tied)
        self._enter(program)

    def supersede(self, program_id: str) -> None:
        """Drop the copy of a program that control has given up."""
        program = self._by_id.get(program_id)
        if program is not None and program.state is not State.ENDED:
            program.journal_lost(Superseded(program=program_id))
        elif program is not None:
            self._ended.drop(program)

    def identity(self, spec: ProgramSpec) -> str:
        """Return what a journal of this program can be run again with here."""
        return self._wasm.identity(spec) if self._wasm is not None else ""

    def join(self, program: Program, call: Call, index: int, *, attach: bool) -> None:
        """Answer a launch whose idempotency key names `program`, once that has started."""
        if program.state is State.STARTING:
            self._answer_when_started(program, call, index, attach=attach)
        else:
            self.accept(program, call, index, attach=attach)

    def _answer_when_started(self, program: Program, call: Call, index: int, *, attach: bool) -> None:
        program.starters.append(
            lambda error, existing: self._answer(program, call, index, error, existing, attach=attach)
        )

    def accept(self, program: Program, call: Call, index: int, *, attach: bool) -> None:
        """Answer a launch with a program that runs."""
        guest = program.guest
        token = guest.token.encode() if isinstance(guest, NativeGuest) else b""
        call.accept(index, program.program_id, token)
        if attach:
            call.watch(program.output, index)

    def _answer(
        self, program: Program, call: Call, index: int, error: TartletError | None, existing: str, *, attach: bool
    ) -> None:
        if error is not None:
            call.reject(index, error)
        elif existing:
            known = self._by_id.get(existing)
            if known is not None:
                self.accept(known, call, index, attach=attach)
            else:  # it runs, or ran, at another runtime
                call.accept(index, existing)
                if attach:
                    self.follow_elsewhere(call, index, existing)
        else:
            program.accepted = True
            if not program.model:  # control has placed it on the default one
                program.model = self._models.default_name(program.spec.reach)
            self.accept(program, call, index, attach=attach)

    def _on_accepted(self, program: Program) -> None:
        if self._wasm is not None and not program.accepted:  # no client asks for a next run
            self._wasm.expect(program.spec, program.asked_s)

    def _take_handle(self) -> int:
        while self._next_handle in self._live:
            self._next_handle = self._next_handle % 0xFFFF_FFFF + 1
        handle = self._next_handle
        self._next_handle = handle % 0xFFFF_FFFF + 1
        return handle

    def _wasm_guests(self) -> WasmGuests:
        if self._wasm is None:
            raise Unavailable(what="the sandbox", detail="this runtime runs native programs only")
        return self._wasm

    # ---- control came, or came back (`control_link.Programs`) ----

    def control_back(self) -> list[control_pb2.ProgramStart]:
        """Return announcements of started programs, and ask again for starts that control has not answered."""
        running = []
        for program in self._live.values():
            if program.awaits_control:
                self._link.start(start_of(program))
            elif is_announced(program):
                running.append(start_of(program, running=True, now_s=self._clock.now()))
        return running

    def kept(self) -> list[control_pb2.KeptProgram]:
        """Return the ended programs whose output is kept, which a new control doesn't know."""
        return self._ended.kept()

    # ---- ends ----

    def _on_ended(self, program: Program) -> None:
        del self._live[program.handle]
        if program.goes_on:
            self._continuing.begin(program, self._take_handle())
            return
        self.ledger.give(Use.PROGRAMS, program.reserved_bytes)
        self._ended.close_journal(program)
        # a name that nobody serves is the client's own, and would be kept as a label for ever
        model = program.model if program.accepted else self._models.known_name(program.model, program.spec.reach)
        self._spans.end(program.span, model, program.usage.to_proto(self._clock.now()), program.error)
        if isinstance(program.error, Superseded):
            self._ended.drop(program)
        elif not program.accepted:
            self._ended.forget(program)
        else:
            self._ended.add(program)

    def _forgotten(self, program: Program) -> None:
        del self._by_id[program.program_id]
        key = (program.spec.tenant, program.spec.idempotency_key)
        if self._by_key.get(key) is program:
            del self._by_key[key]

    def tend(self) -> None:
        """End programs that have waited too long, and forget programs that ended long ago. Called periodically."""
        now = self._clock.now()
        self._journals.tend()
        self._ended.tend(now)
        self._link.tend()
        if self._link.connected:
            self._away_since = None
        elif self._away_since is None:
            self._away_since = now
        away_s = now - self._away_since if self._away_since is not None else 0.0
        for program in list(self._live.values()):
            error = overdue(program, now - program.made_s, away_s)
            if error is not None:
                give_up(program, error)

    @property
    def recoverable(self) -> bool:
        """Whether a program runs that another runtime can begin again."""
        return any(p.can_begin_again for p in self._live.values())

    def leave_to_others(self) -> None:
        """Drop the programs that other runtimes begin again. Their clients find them there."""
        for program in [p for p in self._live.values() if p.can_begin_again]:
            program.journal_lost(Superseded(program=program.program_id))

    def close(self) -> None:
        """Close the journals of ended programs whose ends were told; the next runtime finds the others."""
        self._ended.close_told(self._clock.now())

    def end_all(self, error: Callable[[], TartletError]) -> None:
        """End all programs and refuse launches: the runtime stops."""
        self._stopping = error
        for program in list(self._live.values()):
            program.end(error())


def _nowhere(*_: object) -> None:
    """No-op until `app` wires what does this."""
