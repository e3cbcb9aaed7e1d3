"""Programs whose runtime is gone, until another runtime has begun them again from their journals.

Their commands go on meanwhile, and what these answer is kept. Control names the connected runtime with the fewest
programs of those that have the same store of journals, with an epoch that grows each time, so that only the last one
named becomes the owner.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from tartlet_common.clock import Clock
from tartlet_common.config.settings import ControlSettings
from tartlet_common.engine.pools import Reach
from tartlet_common.errors.registry import (
    JournalUnavailable,
    RuntimeLost,
    Superseded,
    TartletError,
    UnknownModel,
    UnknownPool,
    UnknownProgram,
)
from tartlet_common.pauses import Pause
from tartlet_common.rpc.tenancy import Scope
from tartlet_control.core.lifecycle import Lifecycle, StartRequest
from tartlet_control.core.places import pausing
from tartlet_control.core.runtimes.searches import Found, Searches
from tartlet_control.core.runtimes.tries import Tries
from tartlet_control.tables.outbox import Adopted, Notices
from tartlet_control.tables.programs import ProgramState, RuntimeSession

log = logging.getLogger("tartlet.control")

RETRY_S = 1.0
"""Time between two attempts to give a program to a runtime that had no room for it."""
ALL_COMMANDS = (1 << 64) - 1


@dataclass(slots=True)
class Orphan:
    """A program without a runtime."""

    program_id: str
    journals: str
    epoch: int
    since_s: float
    named: RuntimeSession | None = None
    """The runtime that was asked to take it over."""
    not_before_s: float = 0.0
    found: Found | None = None
    """What its journal says, of a program that control knows from its journal alone."""
    waited_s: float = 0.0
    """For how long a runtime could have taken it over, and none did."""
    is_unreadable: bool = False
    """Whether the last runtime that was asked can't read its journal now."""


def fit(sessions: Iterable[RuntimeSession], journals: str) -> list[RuntimeSession]:
    """Return the runtimes that can take over a program whose journal is in a store."""
    return [s for s in sessions if s.gone_since is None and not s.stopping and s.journals == journals]


class Takeovers:
    """Holds the orphans, and gives them to runtimes."""

    def __init__(
        self, lifecycle: Lifecycle, sessions: dict[str, RuntimeSession], settings: ControlSettings, clock: Clock
    ) -> None:
        """Begin without orphans. `sessions` are the runtimes that are there, by id."""
        self.orphans: dict[str, Orphan] = {}
        self.on_moved: Callable[[ProgramState], None]
        """Called when a program has another session, whose commands may be dispatched again."""
        self._lifecycle = lifecycle
        self._sessions = sessions
        self._settings = settings
        self._clock = clock
        self._nowhere = lifecycle.nowhere
        self._next_handle = 1
        self._searches = Searches()
        self._tries = Tries()
        self._ticked_s = clock.now()
        self._returned_s = clock.now() + settings.runtime_grace_s  # the runtimes of an earlier control are back by then

    def lose(self, session: RuntimeSession) -> None:
        """Take the programs from a runtime that is gone. Those end of which too many runtimes have died in a row."""
        failed = [] if session.stopping else self._tries.died(session)
        self.leave(session)
        for program_id in failed:
            log.error("runtimes that were to go on with program %s have died, the last ones of it alone", program_id)
            orphan = self.orphans.get(program_id)
            if orphan is not None:
                self._give_up(orphan, RuntimeLost())
            else:  # it has ended, and nobody asks for its end
                self._lifecycle.ended_at.pop(program_id, None)
                self._tries.forget(program_id)

    def leave(self, session: RuntimeSession) -> None:
        """Take the programs that can begin again elsewhere from a runtime that is gone, or stops."""
        journals = session.journals
        for program in list(session.programs.values()):
            if program.answers is None or not journals:
                continue
            program.journals = journals
            self.orphans[program.id] = Orphan(program.id, journals, program.epoch, self._clock.now())
            self._tries.stop(program.id)
            self._move(program, self._nowhere, self._next_handle)
            self._next_handle += 1
        for program_id, ended in self._lifecycle.ended_at.items():
            if ended.session is session and ended.next_after and program_id not in self.orphans:
                self.orphans[program_id] = Orphan(program_id, ended.journals, ended.epoch, self._clock.now())
        self.ask_again(session)

    @property
    def is_searching(self) -> bool:
        """Whether a store that isn't listed yet may have programs that control hasn't heard of."""
        return self._searches.unlisted(self._sessions.values())

    @property
    def knows_all(self) -> bool:
        """Whether control has heard of all programs in the stores of the runtimes that are connected.

        A runtime doesn't know its store while the journals' Redis is away.
        """
        return not self.is_searching and all(s.journals for s in self._sessions.values() if s.gone_since is None)

    def _move(self, program: ProgramState, to: RuntimeSession, handle: int) -> None:
        old = program.session
        if old.programs.get(program.handle) is program:
            del old.programs[program.handle]
        old.outbox.move(program.handle, to.outbox, handle)
        program.session, program.handle = to, handle
        to.programs[handle] = program
        self.on_moved(program)

    def recall(self, program_id: str, scope: Scope) -> None:
        """Let a runtime tell the end of an ended program whose runtime is gone, if `scope` may see the program."""
        ended = self._lifecycle.ended_at.get(program_id)
        if program_id in self._lifecycle.programs or (ended is not None and not scope.allows(ended.tenant)):
            return
        if ended is not None and ended.session is self._nowhere and program_id not in self.orphans:
            self.orphans[program_id] = Orphan(program_id, ended.journals, ended.epoch, self._clock.now())
            self.name_owners()

    def on_found(self, session: RuntimeSession, journals: Iterable[Found], *, is_last: bool) -> None:
        """Take journals of a runtime's store. Their programs are orphans, unless a runtime has announced them."""
        if is_last:
            self._searches.done(session)
        known = (self._lifecycle.programs, self._lifecycle.ended_at, self.orphans)
        since_s = max(self._clock.now(), self._returned_s)
        for found in journals:
            if any(found.program_id in programs for programs in known):
                continue
            if len(self.orphans) >= self._settings.max_programs:
                log.error("more journals of programs without a runtime than programs may run: the others are left")
                return
            self.orphans[found.program_id] = Orphan(
                found.program_id, session.journals, found.epoch, since_s, None, since_s, found
            )
            self._lifecycle.keys.add(found.tenant, found.idempotency_key, found.program_id)

    def ask_again(self, session: RuntimeSession) -> None:
        """Forget what a runtime was asked for, because its link begins anew."""
        self._searches.leave(session)
        for orphan in self.orphans.values():
            if orphan.named is session:
                orphan.named = None
                self._tries.stop(orphan.program_id)

    def lives(self, program: ProgramState) -> None:
        """Take a runtime's word that its journal of a program is stored: one that was taken over lives again then."""
        self._tries.lives(program.id, self._clock.now())

    def lacks_runtime(self, program_id: str) -> bool:
        """Return whether the runtime that ran a program, or keeps its output, is gone, or may come back."""
        program = self._lifecycle.programs.get(program_id) or self._lifecycle.ended_at.get(program_id)
        return program_id in self.orphans or (program is not None and program.session.gone_since is not None)

    def is_stuck(self, program_id: str, after_s: float) -> bool:
        """Return whether no runtime is at work on a program that has had none for a while."""
        orphan = self.orphans.get(program_id)
        return orphan is not None and orphan.named is None and self._clock.now() - orphan.since_s >= after_s

    def on_kept(self, program_id: str) -> None:
        """Take a runtime's word that a program has ended, whatever its journal says."""
        orphan = self.orphans.get(program_id)
        if orphan is not None and orphan.found is not None and orphan.named is None:
            del self.orphans[program_id]

    def _is_premature(self, orphan: Orphan, now: float) -> bool:
        """Return whether the engines of a program that only its journal knows may be on their way back."""
        found = orphan.found
        if found is None or now - orphan.since_s >= self._settings.takeover_grace_s / 2:
            return False
        try:
            return self._lifecycle.models.named(found.model, Reach.of(found.tenant, found.pool)) is None
        except (UnknownModel, UnknownPool):
            return True

    def name_owners(self) -> None:
        """Ask runtimes to take over the orphans that nobody was asked for, and to list the journals of their stores."""
        now = self._clock.now()
        self._searches.ask(self._sessions.values())
        self._nowhere.outbox.notices = Notices()  # which nobody reads
        for orphan in self.orphans.values():
            if orphan.named is not None or now < orphan.not_before_s or self._is_premature(orphan, now):
                continue
            able = fit(self._sessions.values(), orphan.journals)
            session = min(
                self._tries.may_begin_at(orphan.program_id, able), key=lambda s: len(s.programs), default=None
            )
            if session is not None:
                orphan.named = session
                self._tries.begin(orphan.program_id, session, now)
                orphan.epoch += 1
                program = self._lifecycle.programs.get(orphan.program_id)
                whole = orphan.found is not None if program is None else program.awaits_history
                session.outbox.notices.takeovers.append((orphan.program_id, orphan.epoch, whole))

    def _waits_for_its_turn(self, orphan: Orphan) -> bool:
        """Return whether a program waits until others are proven."""
        able = fit(self._sessions.values(), orphan.journals)
        return bool(able) and not self._tries.may_begin_at(orphan.program_id, able)

    def give_back(self, session: RuntimeSession, request: StartRequest) -> bool:
        """Return whether a runtime may go on with a program that it runs: not if another runtime is the owner.

        The owner is the runtime with the highest epoch. Another runtime's copy that control knows ends in `Superseded`.
        """
        program = self._lifecycle.programs.get(request.program_id)
        orphan = self.orphans.get(request.program_id)
        if orphan is None:
            if program is None or program.session is session or not program.epoch | request.epoch:
                return True
            if request.epoch <= program.epoch:
                return False
            program.session.outbox.notices.kills.append((program.handle, Superseded(program=program.id)))
            self._lifecycle.forget(program, None)
            return True
        if orphan.found is not None and program is None:  # its runtime is back, if nobody else was named
            if orphan.named is not None or (request.durable and request.epoch < orphan.epoch):
                return False
            del self.orphans[request.program_id]
            self._tries.forget(request.program_id)
            return True
        least = orphan.epoch if program is None or orphan.named is not None else program.epoch
        if request.epoch < least or not request.history:
            return False
        del self.orphans[request.program_id]
        self._tries.forget(request.program_id)
        if program is not None:  # what it was told meanwhile was told to nobody, and its history is its state
            self._lifecycle.forget(program, None)
        return True

    def adopt(self, session: RuntimeSession, request: StartRequest) -> None:
        """Take a runtime's word that it has begun an orphan again, or can't.

        Raises:
            Superseded: another runtime was named since.
            UnknownProgram: control knows no such program without a runtime, or has forgotten the program's end.
        """
        orphan = self.orphans.get(request.program_id)
        if orphan is None:
            raise UnknownProgram(program=request.program_id)
        if orphan.named is not session or orphan.epoch != request.epoch:
            raise Superseded(program=request.program_id)
        now = self._clock.now()
        if request.lost is not None:
            self._lost(orphan, request.lost, now)
            return
        del self.orphans[orphan.program_id]
        notices = session.outbox.notices
        program = self._lifecycle.programs.get(orphan.program_id)
        if program is None:
            self._adopt_ended(session, request, orphan)
            return
        assert program.answers is not None
        program.epoch = orphan.epoch
        program.answers.store(request.heard)
        self._tries.adopted(program.id, program, now)
        notices.adopted.append(Adopted(request.handle, program.commands, now - orphan.since_s))
        self._move(program, session, request.handle)
        program.pauses.add(Pause("runtime", now - orphan.since_s))
        pausing.hand_over(program)
        if program.killed is not None:
            notices.kills.append((request.handle, program.killed))
        log.info("runtime %s goes on with program %s", session.runtime_id, program.id)

    def _adopt_ended(self, session: RuntimeSession, request: StartRequest, orphan: Orphan) -> None:
        """Let a runtime tell the end of a run that control has settled before, or go on with the program's next run."""
        ended = self._lifecycle.ended_at.get(orphan.program_id)
        self._tries.adopted(orphan.program_id, None, self._clock.now())
        if ended is None and orphan.found is not None:
            self._begin(session, request, orphan)
            return
        if ended is None:  # too many programs have ended since
            raise UnknownProgram(program=orphan.program_id)
        if ended.next_after and ended.next_after != request.run:  # which control has not been asked for
            self._begin(session, request, orphan)
            return
        self._lifecycle.ended_at[orphan.program_id] = replace(ended, session=session, epoch=orphan.epoch)
        session.outbox.notices.adopted.append(Adopted(request.handle, ALL_COMMANDS, 0.0))
        if ended.settled is not None:
            session.outbox.notices.settled.append(replace(ended.settled, handle=request.handle))

    def _begin(self, session: RuntimeSession, request: StartRequest, orphan: Orphan) -> None:
        """Let a runtime go on with a program of whose commands control has taken none."""
        paused_s = self._clock.now() - orphan.since_s
        self._lifecycle.start(session, replace(request, running=True), self._clock.now())
        program = self._lifecycle.programs[request.program_id]
        self._tries.adopted(program.id, program, self._clock.now())
        program.pauses.add(Pause("runtime", paused_s))
        pausing.hand_over(program)
        session.outbox.notices.adopted.append(Adopted(request.handle, 0, paused_s))
        log.info("runtime %s begins program %s again", session.runtime_id, request.program_id)

    def _lost(self, orphan: Orphan, error: TartletError, now: float) -> None:
        self._tries.stop(orphan.program_id)
        may_pass = error.retryable and not error.fields.get("for_good")  # as a damaged journal is
        if may_pass and orphan.waited_s < self._settings.takeover_grace_s:
            orphan.named, orphan.not_before_s = None, now + RETRY_S
            orphan.is_unreadable = isinstance(error, JournalUnavailable)
            return
        self._give_up(orphan, error)

    def _give_up(self, orphan: Orphan, error: TartletError) -> None:
        del self.orphans[orphan.program_id]
        self._tries.forget(orphan.program_id)
        program = self._lifecycle.programs.get(orphan.program_id)
        log.warning("program %s is lost with its runtime: %s", orphan.program_id, error)
        if program is not None:
            if isinstance(error, UnknownProgram) or not program.has_begun:  # nobody can ever read its output
                self._lifecycle.keys.forget(program.tenant, program.idempotency_key, program.id)
            self._lifecycle.forget(program, RuntimeLost())
        elif orphan.found is not None:
            self._lifecycle.keys.forget(orphan.found.tenant, orphan.found.idempotency_key, orphan.program_id)
        self._lifecycle.ended_at.pop(orphan.program_id, None)

    def tick(self) -> None:
        """Give up orphans that nobody has taken for too long, and name owners for the others.

        Time doesn't count while no runtime is there that has its store, while the journal can't be read, while a
        runtime is at work, and while a program waits until others are proven: a machine that is slow, or a Redis that
        is away, costs no program.
        """
        now = self._clock.now()
        self._tries.tick(now)
        passed_s, self._ticked_s = now - self._ticked_s, now
        if any(s.gone_since is None and s.journals for s in self._sessions.values()):
            for orphan in list(self.orphans.values()):
                is_left = orphan.named is None and not orphan.is_unreadable and now > orphan.since_s
                if is_left and not self._waits_for_its_turn(orphan):
                    orphan.waited_s += min(passed_s, now - orphan.since_s)
                    if orphan.waited_s >= self._settings.takeover_grace_s:
                        self._give_up(orphan, RuntimeLost())
        self.name_owners()
