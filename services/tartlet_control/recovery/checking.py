"""Compares the books with histories at random moments while programs run: a test's check, which costs memory and time.

A program's records and answers are kept beside the core, as its runtime keeps them. What comes of the checks is written
to a directory, because the processes of a test are killed at any moment.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tartlet_common.abi import Op, Record
from tartlet_common.errors.base import TartletError
from tartlet_control.core.core import Core
from tartlet_control.core.lifecycle import StartRequest
from tartlet_control.rebuild.comparing import differences
from tartlet_control.rebuild.histories import Sent
from tartlet_control.tables.outbox import Outbox
from tartlet_control.tables.programs import ProgramState, RuntimeSession

log = logging.getLogger("tartlet.control")

CHANCE: Final = 0.25
"""How likely a program is to be compared after a step whose answers it got."""
_PAUSES: Final = 9
"""Times the duration of a check that passes before the next one: checks take at most a tenth of the time."""
_MOST_A_SECOND: Final = 50
"""Checks a second at the most."""
_MOST_RECORDS: Final = 10_000
"""Programs with more records are not compared any more."""


class _Shadow:
    """What one program has sent and was told."""

    __slots__ = ("commands", "told")

    def __init__(self) -> None:
        self.commands: list[Sent] = []
        self.told: list[Sent] = []


class _ShadowedOutbox(Outbox):
    """An outbox that also keeps what it delivers."""

    __slots__ = ("checks", "session")

    checks: BookChecks
    session: RuntimeSession

    def deliver(self, handle: int, event: int, flags: int, ticket: int, queue: int, *more: Any, **named: Any) -> None:
        """Append one record for the program `handle`, and keep it."""
        super().deliver(handle, event, flags, ticket, queue, *more, **named)
        program = self.session.programs.get(handle)
        if program is not None:
            self.checks.told(program, event, flags, ticket, queue, *more, **named)


class BookChecks:
    """Compares programs' books with the folds of their histories."""

    def __init__(self, core: Core, directory: Path, pick: random.Random | None = None) -> None:
        """Begin without programs.

        Args:
            core: whose books are compared.
            directory: gets a file `counts-PID` and, for every book that is wrong, a file `wrong-PID-N`.
            pick: chooses the moments; None: with a seed of its own, which is logged.
        """
        self.programs = self.checked = self.wrong = 0
        """Programs that have sent commands, comparisons made, and those that found a difference."""
        self._core = core
        self._directory = directory
        self._shadows: dict[str, _Shadow] = {}
        self._touched: dict[str, ProgramState] = {}
        self._free_s = 0.0
        if pick is None:
            seed = random.SystemRandom().randrange(1 << 30)
            log.info("books are compared with folds, at moments of seed %d", seed)
            pick = random.Random(seed)  # noqa: S311 - chooses moments, no secrets
        self._pick = pick
        self._submit = core.intake.submit
        self._pump = core.pump
        self._on_start, self._on_end = core.lifecycle.on_start, core.lifecycle.on_end
        self._on_restored = core.lifecycle.on_restored
        self._on_moved = core.takeovers.on_moved

    def attach(self) -> None:
        """Follow all programs that start from now on."""
        core = self._core
        core.intake.submit = self.submit  # type: ignore[method-assign]  # each command passes here
        core.pump = self.pump  # type: ignore[method-assign]
        core.lifecycle.on_start, core.lifecycle.on_end = self._begin, self._end
        core.lifecycle.on_restored = self._restored
        core.takeovers.on_moved = self._moved

    # ---- what programs send and are told ------------------------------------------------------------------------

    def _begin(self, program: ProgramState, request: StartRequest) -> None:
        self._listen(program.session)
        if request.history or not request.running:  # else: another control knew its first commands, and nobody tells
            self._shadows[program.id] = _Shadow()
        self._on_start(program, request)

    def _listen(self, session: RuntimeSession) -> None:
        """Keep what programs of a runtime are told from now on."""
        if type(session.outbox) is Outbox:
            shadowed = _ShadowedOutbox()
            for name in Outbox.__slots__:
                setattr(shadowed, name, getattr(session.outbox, name))
            shadowed.checks, shadowed.session = self, session
            session.outbox = shadowed

    def _restored(self, program: ProgramState, commands: Sequence[Sent], answers: Sequence[Sent]) -> None:
        """Keep the history of a program of another control. What was submitted again meanwhile is part of it."""
        shadow = self._shadows.get(program.id)
        if shadow is not None:
            self.programs += not shadow.commands
            shadow.commands = list(commands)
            shadow.told[:0] = answers
            if len(commands) > _MOST_RECORDS:
                self._forget(program)
        self._on_restored(program, commands, answers)

    def _end(self, program: ProgramState, error: TartletError | None) -> None:
        self._forget(program)
        self._on_end(program, error)

    def _forget(self, program: ProgramState) -> None:
        self._shadows.pop(program.id, None)
        self._touched.pop(program.id, None)

    def _moved(self, program: ProgramState) -> None:
        """Keep what a program was told while it had no runtime. What it had heard before comes twice, to no effect."""
        self._listen(program.session)
        if program.answers is None:
            self._forget(program)
        else:
            for answer in program.answers.rest:
                self.told(program, *answer)
        self._on_moved(program)

    def submit(self, program: ProgramState, record: Record, payload: memoryview, now: float) -> None:
        """Take one record of a live program, as `CommandIntake.submit`, and keep it."""
        shadow = self._shadows.get(program.id)
        if shadow is not None:
            self.programs += not shadow.commands
            if len(shadow.commands) >= _MOST_RECORDS:
                self._forget(program)
            else:
                shadow.commands.append((record, memoryview(bytes(payload))))
        self._submit(program, record, payload, now)

    def told(  # noqa: PLR0913, PLR0917 - one argument a field of the record, as `Outbox.deliver`
        self,
        program: ProgramState,
        event: int,
        flags: int,
        ticket: int,
        queue: int,
        a: int = 0,
        b: int = 0,
        c: int = 0,
        payload: bytes = b"",
    ) -> None:
        """Keep a record that a program was told."""
        shadow = self._shadows.get(program.id)
        if shadow is not None:
            record = Record(event, flags, ticket, queue, a, b, c, 0, len(payload))
            shadow.told.append((record, memoryview(payload)))
            self._touched[program.id] = program

    # ---- comparing ------------------------------------------------------------------------------------------------

    def pump(self) -> float | None:
        """Send every engine what its batcher wants, as `Core.pump`, and compare a program at random."""
        look_at = self._pump()
        if self._touched:
            now = self._core.clock.now()
            if now >= self._free_s and self._pick.random() < CHANCE:
                self.check(self._pick.choice(list(self._touched.values())))
                took_s = self._core.clock.now() - now
                self._free_s = now + max((_PAUSES + 1) * took_s, 1 / _MOST_A_SECOND)
            self._touched.clear()
        return look_at

    def check(self, program: ProgramState) -> None:
        """Compare a program's books with the fold of its history."""
        shadow, session = self._shadows.get(program.id), program.session
        if shadow is None or not program.live or program.awaits_history or session is self._core.lifecycle.nowhere:
            return
        models = self._core.models
        try:
            found = differences(program, shadow.commands, shadow.told, lambda n: models.at(session.models.ours(n)))
        except Exception as e:  # noqa: BLE001 - whatever the fold stumbles over: the program itself goes on
            found = {"history": (repr(e), "it can't be folded")}
        if found is not None and program.commands != len(shadow.commands):
            found["commands"] = (program.commands, len(shadow.commands))
        if found is None:
            return
        self.checked += 1
        if found:
            self.wrong += 1
            self._tell(program, shadow, found)
        counts = f"{self.programs} {self.checked} {self.wrong}\n"
        self._write(f"counts-{os.getpid()}", counts)

    def _tell(self, program: ProgramState, shadow: _Shadow, found: dict[str, tuple[Any, Any]]) -> None:
        log.error("the book of program %s isn't what its history says: %s", program.id, ", ".join(found))
        lines = [f"program {program.id}, {program.name}"]
        for part, (book, folded) in found.items():
            lines += [f"{part}:", f"  the book: {book}", f"  not: {folded}"]
        lines += [f"command {Op(record.op).name} {record}" for record, _ in shadow.commands[-200:]]
        lines += [f"answer {record}" for record, _ in shadow.told[-100:]]
        self._write(f"wrong-{os.getpid()}-{self.wrong}", "\n".join(lines))

    def _write(self, name: str, text: str) -> None:
        """Write a file as a whole: a test may kill this process at any moment, or read meanwhile."""
        unfinished = self._directory / f"unfinished-{os.getpid()}"
        unfinished.write_text(text)
        unfinished.rename(self._directory / name)
