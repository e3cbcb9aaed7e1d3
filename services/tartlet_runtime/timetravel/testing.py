"""Runs recorded runs against a new version of their program, and finds the first command that differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tartlet_common.errors.registry import Diverged, ProgramFailed, TartletError
from tartlet_runtime.abi.commands import Command
from tartlet_runtime.journal.records import JournalRecord, Kind
from tartlet_runtime.timetravel import finding
from tartlet_runtime.timetravel.report import RecordedEnd, recorded_end
from tartlet_runtime.timetravel.rerun import Rerun, Sandbox

Status = Literal["same", "diverged", "other end", "can't tell"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a new version of the program made of a recorded run."""

    program_id: str
    path: Path
    status: Status
    deliveries: int
    """Deliveries that the new version took as the recorded one did."""
    line: str = ""
    """FILE:LINE of the new version that gave the differing command."""
    was: str = ""
    now: str = ""


def runs_of(directory: Path, names: Sequence[str]) -> Iterator[tuple[Path, finding.Found]]:
    """Yield the journals of a directory, or the one in a file, whose program's file has one of these names."""
    journals = finding.all_in(directory) if directory.is_dir() else [(directory, finding.read(directory))]
    for path, found in journals:
        if Path(found.parsed.header.filename).name in names:
            yield path, found


def compare(box: Sandbox, path: Path, found: finding.Found, source: bytes) -> Verdict:
    """Run a recorded run again with its own source, then with another one.

    Raises:
        StartFailed: the Python component isn't built.
    """
    header, records = found.parsed.header, found.parsed.records
    deliveries = [record for record in records if record.kind == Kind.DELIVERY]
    try:
        before = box.run(Rerun(header, deliveries), header.source)
    except TartletError as e:
        told = f"the recorded version itself can't be run again: {e}"
        return Verdict(header.program_id, path, "can't tell", 0, was=told)
    end = recorded_end(records) or (RecordedEnd(before.text, before.error) if before.ended else None)
    return _beside(box, path, before, source, end)


def _beside(box: Sandbox, path: Path, before: Rerun, source: bytes, end: RecordedEnd | None) -> Verdict:
    header = replace(before.header, source=source)
    checks = _Checks(before)
    now = Rerun(header, before.records, check=checks.at_wait)
    now.on_command = lambda command: checks.given(now, command)
    found: _Differs | None = None
    try:
        box.run(now, source)
    except Diverged:
        found = checks.found
    if found is None and len(now.commands) < len(before.commands):
        found = _Differs(before.commands[len(now.commands)], None)
    if found is not None:
        line = now.line_of(found.now) if found.now is not None else ""
        was = str(found.was) if found.was is not None else str(end or "nothing")
        gone_on = found.was is None and end is not None
        told = str(found.now) if found.now is not None else _end_of(now)
        return Verdict(header.program_id, path, "other end" if gone_on else "diverged", now.at, line, was, told)
    then, told = str(end or "no end"), _end_of(now)
    if now.ended != before.ended or (now.ended and not _same_end(before, now)):
        return Verdict(header.program_id, path, "other end", now.at, was=then, now=told)
    return Verdict(header.program_id, path, "same", now.at, was=then, now=told)


@dataclass(frozen=True, slots=True)
class _Differs:
    was: Command | None  # None: the recorded run gave no more
    now: Command | None  # None: the new version gave no more


class _Checks:
    """Compares a run's commands with those of an earlier one as they come."""

    def __init__(self, before: Rerun) -> None:
        self._before = before
        self._count = 0
        self.found: _Differs | None = None

    def given(self, rerun: Rerun, command: Command) -> None:
        """Compare one command.

        Raises:
            Diverged: it differs.
        """
        known = self._before.commands
        was = known[self._count] if self._count < len(known) else None
        self._count += 1
        if was != command:
            self._differs(rerun, _Differs(was, command))

    def at_wait(self, rerun: Rerun, _record: JournalRecord) -> None:
        """Compare how many commands were given before a wait.

        Raises:
            Diverged: they are fewer or more.
        """
        expected = self._before.waits[rerun.at]
        if self._count < expected:
            self._differs(rerun, _Differs(self._before.commands[self._count], None))
        if self._count > expected:
            self._differs(rerun, _Differs(None, rerun.commands[expected]))

    def _differs(self, rerun: Rerun, found: _Differs) -> None:
        self.found = found
        raise Diverged(wait=rerun.at + 1, detail="the commands differ")


def _same_end(before: Rerun, now: Rerun) -> bool:
    if before.error is None or now.error is None:
        return before.error is now.error and before.text == now.text
    return type(before.error) is type(now.error) and (
        not isinstance(before.error, ProgramFailed) or _end_of(before) == _end_of(now)
    )


def _end_of(rerun: Rerun) -> str:
    return str(RecordedEnd(rerun.text, rerun.error)) if rerun.ended else "waits"
