"""The runtimes that have said Hello, and the programs that they start, announce and end.

A runtime whose stream broke has a grace to come back. A request to start a program may have to wait for runtimes that
aren't back yet, because one of them may run a program with the same idempotency key. The request also waits while the
program that its key names may turn out never to have begun.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from tartlet_common.capabilities import SHARED, SharedCeilings
from tartlet_common.clock import Clock
from tartlet_common.config.lists import listed
from tartlet_common.config.settings import ControlSettings
from tartlet_common.errors.registry import (
    ControlLost,
    MalformedSubmission,
    Overloaded,
    RuntimeLost,
    Superseded,
    TartletError,
    Unavailable,
)
from tartlet_control.core.lifecycle import Kept, Lifecycle, StartRequest
from tartlet_control.core.runtimes.takeovers import Takeovers
from tartlet_control.tables.programs import RuntimeSession

log = logging.getLogger("tartlet.control")

BEGINS_S: Final = 1.0
"""For how long a runtime may leave open whether a program has begun. Runtimes of the last release never say so."""
ANSWER_S: Final = 6.0
"""For how long a request waits until its key is known: somewhat longer than runtimes take to be back."""
UNRECORDED: Final = (1 << 64) - 1
"""Stands for the number of stored records of a program that goes on without its journal."""
_HANDLE: Final = struct.Struct("<I")
_COUNT: Final = struct.Struct("<Q")
_KEY: Final = "whatever the idempotency key names"


class _Waiting(NamedTuple):
    """A request whose key isn't known yet."""

    session: RuntimeSession
    request: StartRequest
    since_s: float


class Runtimes:
    """Holds the sessions of runtimes."""

    def __init__(self, lifecycle: Lifecycle, settings: ControlSettings, clock: Clock) -> None:
        self.lifecycle = lifecycle
        allowed = {what: listed(getattr(settings, f"allowed_{what}")) for what in SHARED}
        lifecycle.ceilings = SharedCeilings.of(allowed)
        self.settings = settings
        self.clock = clock
        self.sessions: dict[str, RuntimeSession] = {}  # by runtime id
        self.takeovers = Takeovers(lifecycle, self.sessions, settings, clock)
        self._waiting: list[_Waiting] = []

    def on_runtime(
        self,
        runtime_id: str,
        incarnation: str,
        address: str,
        programs: Iterable[StartRequest],
        kept: Iterable[Kept] = (),
        journals: str = "",
    ) -> RuntimeSession:
        """Take the Hello of a runtime that is new, or back within its grace with the programs it runs and keeps."""
        session = self.sessions.get(runtime_id)
        if session is not None and session.incarnation != incarnation:
            self.lose_runtime(session)
            session = None
        if session is None:
            session = self.sessions[runtime_id] = RuntimeSession(runtime_id, incarnation, address)
        self.takeovers.ask_again(session)
        session.gone_since = None
        self._reconcile(session, list(programs))
        self.on_kept(session, kept)
        self.on_journals(session, journals)
        return session

    def on_journals(self, session: RuntimeSession, journals: str) -> None:
        """Take the name of a runtime's store of journals: it may take over programs whose journals are there."""
        session.journals = journals
        self.takeovers.name_owners()

    def on_stored(self, session: RuntimeSession, handles: bytes, counts: bytes) -> None:
        """Forget the records to programs that are stored in their journals, in columns as in control.proto.

        Raises:
            MalformedSubmission: the columns don't fit together.
        """
        if len(handles) % 4 or len(counts) != 2 * len(handles):
            raise MalformedSubmission(detail=f"columns of {len(handles)} and {len(counts)} bytes")
        for (handle,), (count,) in zip(_HANDLE.iter_unpack(handles), _COUNT.iter_unpack(counts), strict=True):
            program = session.programs.get(handle)
            if program is None or program.answers is None:
                continue
            if count == UNRECORDED:
                program.answers = None
                session.outbox.keeps.pop(handle, None)
            else:
                program.answers.store(count)
                self.takeovers.lives(program)

    def on_stopping(self, session: RuntimeSession) -> None:
        """Name other runtimes for the programs of one that stops."""
        session.stopping = True
        self.takeovers.leave(session)
        self.takeovers.name_owners()

    def on_kept(self, session: RuntimeSession, kept: Iterable[Kept]) -> None:
        """Remember programs that have ended and whose output the runtime keeps."""
        for program in kept:
            self.lifecycle.remember(session, program)
            self.takeovers.on_kept(program.program_id)

    def _reconcile(self, session: RuntimeSession, announced: list[StartRequest]) -> None:
        """Match the programs that the runtime runs with those that control knows of it."""
        self._forget_waiting(session)  # it asks again
        known = {p.id: p for p in session.programs.values()}
        running = {r.program_id: r.handle for r in announced}
        for remembered in [r.program_id for r in announced if r.history and r.program_id in known]:
            self.lifecycle.forget(known.pop(remembered), None)  # what came of its last commands is in its history
        for program in known.values():
            if program.id not in running:
                self.lifecycle.forget(program, None)
                # it has never begun, and is asked for again or was withdrawn; else the runtime says that it keeps it
                self.lifecycle.keys.forget(program.tenant, program.idempotency_key, program.id)
        session.outbox.keep({h for i, h in running.items() if i in known and known[i].handle == h})
        session.programs = {r.handle: known[r.program_id] for r in announced if r.program_id in known}
        notices = session.outbox.notices
        notices.models_changed = True
        session.models.awaited = any(request.history for request in announced)
        told = {handle for handle, _ in notices.kills}
        for handle, program in session.programs.items():
            if program.killed is not None and handle not in told:  # it may not have heard
                notices.kills.append((handle, program.killed))
            if program.handle != handle:
                if program.answers is not None:
                    session.outbox.keeps[handle] = session.outbox.keeps.pop(program.handle, program.answers)
                program.handle = handle
                if program.commands:  # answers may have been under way to its old handle
                    self.lifecycle.kill(program, ControlLost(why="its commands to the last one were lost"))
        for request in announced:
            if request.program_id not in known:
                self.on_start(session, request)
                started = session.programs.get(request.handle)
                if started is not None and request.lost_state and not request.history:
                    self.lifecycle.kill(started, ControlLost(why="its commands to the last one were lost"))

    def on_runtime_gone(self, session: RuntimeSession) -> None:
        """Note that a runtime's stream has ended: the runtime has `runtime_grace_s` to come back."""
        session.gone_since = self.clock.now()

    def lose_runtime(self, session: RuntimeSession) -> None:
        """Give a runtime up. Its programs begin again elsewhere, or they end and what they hold is freed."""
        self._forget_waiting(session)
        self.takeovers.lose(session)
        for program in list(session.programs.values()):
            if not program.has_begun:
                self.lifecycle.keys.forget(program.tenant, program.idempotency_key, program.id)
            self.lifecycle.forget(program, RuntimeLost())
        self.lifecycle.forget_runtime(session)
        if session.link is not None:
            session.link.give_up()
        if self.sessions.get(session.runtime_id) is session:
            del self.sessions[session.runtime_id]
        self.takeovers.name_owners()

    def on_start(self, session: RuntimeSession, request: StartRequest, since_s: float | None = None) -> None:
        """Start a program for a runtime, or let the request wait until its key is known.

        `since_s`: when the request came, if it has waited.
        """
        now = self.clock.now()
        since_s = now if since_s is None else since_s
        try:
            if request.adopts:
                self.takeovers.adopt(session, request)
                return
            known = request.running or request.program_id in self.takeovers.orphans
            if known and not self.takeovers.give_back(session, request):
                raise Superseded(program=request.program_id)
            if request.idempotency_key and not request.running and self._may_be_known(request, now, since_s):
                self._waiting.append(_Waiting(session, request, since_s))
                return
            existing = self.lifecycle.start(session, request, now)
        except TartletError as e:
            session.outbox.notices.started.append((request.handle, e, ""))
            return
        session.outbox.notices.started.append((request.handle, None, existing))

    def _may_be_known(self, request: StartRequest, now: float, since_s: float) -> bool:
        """Return whether it isn't known yet which program the request's key names.

        A runtime that isn't back yet, or a store, may have one. Or the program that it names may never begin.

        Raises:
            Unavailable: nobody can say so now. The answer may be another one later.
            Overloaded: too many requests wait.
        """
        keys = self.lifecycle.keys
        if named := keys.named(request.tenant, request.idempotency_key):
            waits = named != request.program_id and self._may_never_begin(named, now)
            if waits and self.takeovers.is_stuck(named, BEGINS_S):
                raise Unavailable(what=f"program {named}", detail="no runtime can tell now whether it has ever begun")
        else:
            waits = keys.returning(now) or self.takeovers.is_searching
        if waits and now - since_s >= ANSWER_S:
            raise Unavailable(what=_KEY, detail="no runtime has told it")
        if waits and len(self._waiting) >= self.settings.max_programs:
            raise Overloaded(what="control's program table", limit=self.settings.max_programs)
        return waits

    def _may_never_begin(self, program_id: str, now: float) -> bool:
        """Return whether a program may be forgotten, because its runtime dies before its journal is stored."""
        program = self.lifecycle.programs.get(program_id)
        if program is None or program.has_begun:
            return False
        is_gone = program_id in self.takeovers.orphans or program.session.gone_since is not None
        return is_gone or now - program.started_s < BEGINS_S

    def _forget_waiting(self, session: RuntimeSession, handle: int | None = None) -> None:
        self._waiting = [w for w in self._waiting if w.session is not session or handle not in {None, w.request.handle}]

    def on_end(
        self, session: RuntimeSession, handle: int, *, failed: bool, withdrawn: bool = False, goes_on: bool = False
    ) -> None:
        """Take a program's end in its runtime.

        Args:
            session: of the runtime.
            handle: of the program.
            failed: it ended in an error.
            withdrawn: the runtime refused its launch.
            goes_on: only this run has ended; the program's next run is asked for soon.
        """
        program = session.programs.get(handle)
        if program is not None:  # else: it was never started, or we ended it both at once
            if withdrawn:
                self.lifecycle.keys.forget(program.tenant, program.idempotency_key, program.id)
            program.goes_on = goes_on
            self.lifecycle.end(program, failed=failed)
        elif self._waiting:
            self._forget_waiting(session, handle)

    def tick(self, now: float) -> None:
        """Retry requests that wait, and give up runtimes past their grace."""
        self.takeovers.tick()
        grace_s = self.settings.runtime_grace_s + self.settings.takeover_grace_s
        self.lifecycle.families.tend(now, self.takeovers.orphans.__contains__, grace_s)
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for session, request, since_s in waiting:
                self.on_start(session, request, since_s)  # which lets it wait again if it has to
        for session in list(self.sessions.values()):
            if session.gone_since is not None and now - session.gone_since >= self.settings.runtime_grace_s:
                log.warning("runtime %s did not come back", session.runtime_id)
                self.lose_runtime(session)
