"""Journals of programs as they are launched, or begin again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tartlet_common.errors.registry import JournalUnavailable, TartletError
from tartlet_runtime.journal.journal import Journal
from tartlet_runtime.journal.journals import Journals
from tartlet_runtime.journal.records import encode_header, shared_text
from tartlet_runtime.link.control_link import ControlLink
from tartlet_runtime.program.driver import Driver
from tartlet_runtime.program.program import Program
from tartlet_runtime.program.recorder import Recorder
from tartlet_runtime.program.rerun import Rerun
from tartlet_runtime.program.spec import ProgramSpec


@dataclass(frozen=True, slots=True)
class Past:
    """The journal of a program of another runtime, which this runtime owns now."""

    header: bytes
    start_ns: int
    stored_bytes: int
    epoch: int
    rerun: Rerun
    since_offset: int = 0
    """Events of the output when the journal began."""


class Recording:
    """Opens journals for programs."""

    def __init__(
        self, journals: Journals, link: ControlLink, driver: Driver, identity: Callable[[ProgramSpec], str]
    ) -> None:
        """Begin. `identity` says what a journal of a program can be run again with."""
        self._journals = journals
        self._link = link
        self._driver = driver
        self._identity = identity

    @property
    def store_name(self) -> str:
        """The name of the store; "" while it isn't known."""
        return self._journals.store_name

    def open(self, program: Program) -> None:
        """Open the journal of a new program, unless that goes on without one.

        Raises:
            JournalFull, JournalUnavailable, Overloaded, DiskFull: as `Journals.open`.
        """
        spec = program.spec
        header = self._header(program)
        try:
            journal = self._journals.open(spec.program_id, header, spec.limits.journal_bytes)
        except JournalUnavailable:
            if spec.degrades:
                return
            raise
        heard = 0
        try:
            for r in program.begins_with:
                journal.append(r.clock_ns, r.delivery, r.from_control, r.read_to, r.kind, r.digest)
                heard = max(heard, r.from_control)
        except TartletError:
            self._journals.close(journal, keep=False)
            raise
        self._record(program, journal, heard)

    def begin_anew(self, recorder: Recorder, after: Program) -> None:
        """Begin the journal of a program's next run in place of that of the run before.

        Raises:
            JournalFull, Overloaded: as `Journals.begin_anew`.
        """
        if recorder.is_broken:
            return
        limit = after.spec.limits.journal_bytes
        self._record(after, self._journals.begin_anew(recorder.journal, self._header(after), limit), 0)

    def _header(self, program: Program) -> bytes:
        spec = program.spec
        text = shared_text(
            spec.language,
            spec.filename,
            spec.args,
            self._identity(spec),
            spec.name,
            spec.tenant,
            spec.model,
            spec.pool,
            spec.degrades,
            spec.tied,
            spec.session,
            spec.parent_session,
            spec.ends_session,
            spec.parent,
            spec.detached,
            spec.grants,
            spec.limits,
        )
        offset = program.output.log.end
        return encode_header(
            spec.program_id,
            spec.seed,
            program.clock_start_ns,
            text,
            spec.source,
            spec.idempotency_key,
            offset,
            program.lag_ns,
        )

    def go_on(self, program: Program, past: Past) -> None:
        """Continue the journal of a program that begins again.

        Raises:
            Overloaded: the journals of running programs take all the space.
        """
        spec = program.spec
        limit = spec.limits.journal_bytes
        journal = self._journals.adopt(spec.program_id, past.header, limit, past.stored_bytes, past.epoch)
        self._record(program, journal, past.rerun.heard)

    def _record(self, program: Program, journal: Journal, heard: int) -> None:
        recorder = Recorder(
            journal,
            self._journals,
            lost=program.journal_lost,
            room=partial(self._driver.wake, program),
            stored=partial(self._link.stored, program) if program.spec.recoverable else None,
            degrades=program.spec.degrades,
            heard=heard,
        )
        program.record(recorder)
