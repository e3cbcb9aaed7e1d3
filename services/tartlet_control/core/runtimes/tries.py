"""Finds programs that kill the runtimes which take them over, among those that a runtime had just been given.

A takeover is a try until its program is proven: it has given new commands, or it has lived for `SETTLE_S` since the
guest knew its past again. A runtime that dies may have died of any program that was unproven there. Each of these is
tried next among half as many, and in the end alone, so the one to blame is found in as many deaths as a number has
binary digits, while the others are proven by halves. If runtimes die for other reasons, again and again, the parts
become as small as can be proven between two deaths.

A program ends that was the only unproven one at several deaths in a row. Such a death tells little if another program
has begun there meanwhile, which may be the cause as well. Time alone ends no try: a guest may take long to run its past
again.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tartlet_control.tables.programs import ProgramState, RuntimeSession

MOST: Final = 4
"""So many runtimes in a row have died of a program that ends, at least..."""
ALONE: Final = 3
"""...and so many of them when nothing else was unproven there."""
DOUBTFUL: Final = 0.25
"""What the death of a runtime counts where another program had begun while the last one was tried alone."""
SETTLE_S: Final = 0.5
SILENT_S: Final = 300.0
"""So long after its adoption a program is proven anyway: runtimes of the last release don't say that it lives."""
_ANY: Final = sys.maxsize


@dataclass(slots=True)
class _Suspicion:
    """What the deaths of runtimes in a row tell of one program."""

    part: int = _ANY
    """Among how many unproven ones it is tried, itself included."""
    deaths: float = 0.0
    alone: float = 0.0
    """Those of the deaths at which it was the only unproven one."""


@dataclass(slots=True, eq=False)
class _Try:
    session: RuntimeSession
    part: int
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
        return DOUBTFUL if self.part == 1 and any(other.started_s >= self.since_s for other in others) else 1.0


@dataclass(slots=True)
class _Unproven:
    """The programs that are tried at one runtime."""

    tries: dict[str, _Try] = field(default_factory=dict)
    parts: Counter[int] = field(default_factory=Counter)
    """How many of them are tried among at most so many: few different numbers, for they are halves of halves."""

    def fits(self, part: int) -> bool:
        """Return whether one more may be tried, which is tried among `part` at most."""
        return len(self.tries) < min(part, *self.parts)


class Tries:
    """The takeovers that are tried, and how often each program's tries have failed in a row."""

    def __init__(self) -> None:
        """Begin without tries."""
        self._suspicions: dict[str, _Suspicion] = {}  # by program id
        self._tries: dict[str, _Try] = {}
        self._at: dict[RuntimeSession, _Unproven] = {}

    def may_begin_at(self, program_id: str, sessions: Iterable[RuntimeSession]) -> list[RuntimeSession]:
        """Return those of the runtimes that may be given a program now. The others try as many as they may."""
        part = self._part(program_id)
        return [s for s in sessions if (at := self._at.get(s)) is None or at.fits(part)]

    def _part(self, program_id: str) -> int:
        suspicion = self._suspicions.get(program_id)
        return _ANY if suspicion is None else suspicion.part

    def begin(self, program_id: str, session: RuntimeSession, now: float) -> None:
        """Note that a runtime is given a program."""
        self.stop(program_id)
        tried = self._tries[program_id] = _Try(session, self._part(program_id), now)
        at = self._at.setdefault(session, _Unproven())
        at.tries[program_id] = tried
        at.parts[tried.part] += 1

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
        if tried is None:
            return
        at = self._at[tried.session]
        del at.tries[program_id]
        at.parts[tried.part] -= 1
        if not at.parts[tried.part]:
            del at.parts[tried.part]
        if not at.tries:
            del self._at[tried.session]

    def forget(self, program_id: str) -> None:
        """Forget a program that has ended, or that is proven."""
        self.stop(program_id)
        self._suspicions.pop(program_id, None)

    def died(self, session: RuntimeSession) -> list[str]:
        """Note that a runtime has died; return the programs that are tried no more."""
        at = self._at.get(session)
        failed = {} if at is None else dict(at.tries)
        for program_id, tried in failed.items():
            self.stop(program_id)
            suspicion = self._suspicions.setdefault(program_id, _Suspicion())
            suspicion.part = max(1, len(failed) // 2)
            suspicion.deaths += tried.died_of
            suspicion.alone += tried.died_of * (len(failed) == 1)
        return [program_id for program_id in failed if self._is_guilty(program_id)]

    def _is_guilty(self, program_id: str) -> bool:
        suspicion = self._suspicions[program_id]
        return suspicion.deaths >= MOST and suspicion.alone >= ALONE

    def tick(self, now: float) -> None:
        """End the tries of programs that are proven by now."""
        for program_id, tried in list(self._tries.items()):
            program = tried.program
            goes_on = program is not None and (program.commands > tried.commands or not program.live)
            if goes_on or now >= tried.until_s:
                self.forget(program_id)
