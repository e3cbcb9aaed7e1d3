"""Ended programs whose output is kept for a while, and their journals until a client was told the end."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tartlet_common.config.settings import RuntimeSettings
from tartlet_common.errors.registry import Superseded
from tartlet_protos import control_pb2
from tartlet_runtime.budget.ledger import Ledger, Use
from tartlet_runtime.journal.journal import Journal
from tartlet_runtime.journal.journals import Journals
from tartlet_runtime.program.program import Program

KEPT_BYTES: Final = 256 << 20
"""Output of ended programs that is kept in all; beyond it the oldest are forgotten before their time."""
_MAX_UNREAD: Final = 256
"""Journals of ended programs that stay open because no client was told the end."""
_TOLD_S: Final = 2.0
"""How long a journal in Redis stays open after the end was told: a client may not have read that when all die."""


@dataclass(slots=True)
class _Unread:
    """The open journal of an ended program."""

    journal: Journal
    is_kept: bool
    """Whether the journal is kept for replays, too."""
    told_s: float | None = None


class EndedPrograms:
    """The ended programs of a runtime, the oldest first."""

    def __init__(
        self, settings: RuntimeSettings, ledger: Ledger, journals: Journals, forgotten: Callable[[Program], None]
    ) -> None:
        """Begin without programs. `forgotten` is called with each that is kept no longer."""
        self._settings = settings
        self._ledger = ledger
        self._journals = journals
        self._forgotten = forgotten
        self._programs: OrderedDict[str, Program] = OrderedDict()
        self._unread: dict[Program, _Unread] = {}
        self.bytes = 0
        """Bytes of their output."""
        self._limit = min(KEPT_BYTES, ledger.bound_bytes // 8)

    def close_journal(self, program: Program) -> None:
        """Let the journal of a program that has just ended go, at the latest when a client was told the end.

        Until then another runtime may have to tell it.
        """
        recorder, program.recorder = program.recorder, None
        if recorder is None:
            return
        if isinstance(program.error, Superseded):
            self._journals.leave(recorder.journal)
            return
        keep = program.accepted and (program.error is not None or self._settings.keep_journals)
        if program.accepted and program.spec.recoverable and not (keep and self._journals.immediate):
            self._unread[program] = _Unread(recorder.journal, keep)
        else:
            self._journals.close(recorder.journal, keep=keep)

    def add(self, program: Program) -> None:
        """Keep a program's output. The oldest ones are forgotten for it if there are too many."""
        self._programs[program.program_id] = program
        program.kept_bytes = program.output.log.kept_bytes
        self.bytes += program.kept_bytes
        self._ledger.add(Use.OUTPUTS, program.kept_bytes)
        while len(self._programs) > self._settings.ended_kept or self.bytes > self._limit:
            self._forget_oldest()

    def free(self, wanted_bytes: int) -> None:
        """Forget programs, the oldest first, until as many bytes are free."""
        while self._programs and wanted_bytes > self._ledger.free_bytes:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        self.forget(next(iter(self._programs.values())))

    def forget(self, program: Program) -> None:
        """Forget a program and its journal."""
        self._close(program)
        self._journals.forget(program.program_id)
        self.drop(program)

    def drop(self, program: Program) -> None:
        """Forget a program, but not its journal, which is another runtime's."""
        if self._programs.pop(program.program_id, None) is not None:
            self.bytes -= program.kept_bytes
            self._ledger.give(Use.OUTPUTS, program.kept_bytes)
        self._forgotten(program)

    def _close(self, program: Program) -> None:
        unread = self._unread.pop(program, None)
        if unread is not None:
            self._journals.close(unread.journal, keep=unread.is_kept)

    def tend(self, now: float) -> None:
        """Forget programs that ended long ago, and close journals that nobody needs any more."""
        self.close_told(now, 0.0 if self._journals.immediate else _TOLD_S)
        while self._programs:
            oldest = next(iter(self._programs.values()))
            if now - oldest.usage.ended_s < self._settings.ended_kept_s:
                break
            self._forget_oldest()

    def close_told(self, now: float, wait_s: float = 0.0) -> None:
        """Close journals whose ends were told to a client, `wait_s` seconds later."""
        for program, unread in list(self._unread.items()):
            log = program.output.log
            if unread.told_s is None and log.read_to >= log.end:
                unread.told_s = now
            is_told = unread.told_s is not None and now - unread.told_s >= wait_s
            if is_told or len(self._unread) > _MAX_UNREAD:
                self._close(program)

    def kept(self) -> list[control_pb2.KeptProgram]:
        """Return what a new control is told of them."""
        return [
            control_pb2.KeptProgram(
                program_id=program.program_id, tenant=program.spec.tenant, idempotency_key=program.spec.idempotency_key
            )
            for program in self._programs.values()
        ]
