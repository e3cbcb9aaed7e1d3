"""Finds programs that kill the runtimes which take them over, among those that a runtime had just been given.

A takeover is a try until its program is proven: it has given new commands, or it has lived for `SETTLE_S` since the
guest knew its past again. A program that was tried by several runtimes in a row which died is tried alone then, so the
next death tells whether it is the cause. It tells little if another program has begun there meanwhile, which may be the
cause as well. Time alone ends no try: a guest may take long to run its past again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tartlet_control.tables.programs import ProgramState, RuntimeSession

ALONE_FROM: Final = 2
"""A program that so many runtimes in a row have died of is tried alone."""
MOST: Final = 4
"""A program that so many runtimes in a row have died of, the last ones alone with it, ends."""
DOUBTFUL: Final = 0.25
"""What the death of a runtime counts where another program had begun while the last one was tried alone."""
SETTLE_S: Final = 0.5
SILENT_S: Final = 300.0
"""So long after its adoption a program is proven anyway: runtimes of the last release don't say that it lives."""


@dataclass(slots=True, eq=False)
class _Try:
    session: RuntimeSession
    is_alone: bool
    since_s: float
    program: ProgramState | None = None
    """Once the runtime has begun it again; None if it had ended."""
    commands: int = 0
    """How many of its commands control had taken then."""
    until_s: float = math.inf
    """When it is proven, if nothing happens before."""

    @property
    def died_of(self) -> float:
        """How surely its runtime has died of it, if it has died: 1 stands for a death."""
        others = (other for other in self.session.programs.values() if other is not self.program)
        return DOUBTFUL if self.is_alone and any(other.started_s >= self.since_s for other in others) else 1.0


class Tries:
    """The takeovers that are tried, and how often each program's tries have failed in a row."""

    def __init__(self) -> None:
        """Begin without tries."""
        self._deaths: dict[str, float] = {}  # by program id
        self._tries: dict[str, _Try] = {}
        self._at: dict[RuntimeSession, dict[str, _Try]] = {}

    def may_begin_at(self, program_id: str, sessions: Iterable[RuntimeSession]) -> list[RuntimeSession]:
        """Return those of the runtimes that may be given a program now. Who is tried alone waits for the others."""
        return [s for s in sessions if not (at := self._at.get(s)) or not (self.is_suspect(program_id) or _alone(at))]

    def is_suspect(self, program_id: str) -> bool:
        """Return whether a program is to be tried alone."""
        return self._deaths.get(program_id, 0) >= ALONE_FROM

    def begin(self, program_id: str, session: RuntimeSession, now: float) -> None:
        """Note that a runtime is given a program."""
        self.stop(program_id)
        tried = self._tries[program_id] = _Try(session, self.is_suspect(program_id), now)
        self._at.setdefault(session, {})[program_id] = tried

    def adopted(self, program_id: str, program: ProgramState | None, now: float) -> None:
        """Note that a runtime begins a program again. None: the program had ended, and the runtime tells its end."""
        tried = self._tries.get(program_id)
        if tried is not None:
            tried.program, tried.until_s = program, now + (SETTLE_S if program is None else SILENT_S)
            tried.commands = 0 if program is None else program.commands

    def lives(self, program_id: str, now: float) -> None:
        """Note that a program's guest knows its past again."""
        tried = self._tries.get(program_id)
        if tried is not None and tried.program is not None:
            tried.until_s = min(tried.until_s, now + SETTLE_S)

    def stop(self, program_id: str) -> None:
        """Note that a try has ended without telling anything."""
        tried = self._tries.pop(program_id, None)
        if tried is not None:
            at = self._at[tried.session]
            del at[program_id]
            if not at:
                del self._at[tried.session]

    def forget(self, program_id: str) -> None:
        """Forget a program that has ended, or that is proven."""
        self.stop(program_id)
        self._deaths.pop(program_id, None)

    def died(self, session: RuntimeSession) -> list[str]:
        """Note that a runtime has died; return the programs that are tried no more."""
        failed = dict(self._at.get(session, {}))
        for program_id, tried in failed.items():
            self.stop(program_id)
            self._deaths[program_id] = self._deaths.get(program_id, 0.0) + tried.died_of
        return [program_id for program_id in failed if self._deaths[program_id] >= MOST]

    def tick(self, now: float) -> None:
        """End the tries of programs that are proven by now."""
        for program_id, tried in list(self._tries.items()):
            program = tried.program
            goes_on = program is not None and (program.commands > tried.commands or not program.live)
            if goes_on or now >= tried.until_s:
                self.forget(program_id)


def _alone(tried: dict[str, _Try]) -> bool:
    return next(iter(tried.values())).is_alone
