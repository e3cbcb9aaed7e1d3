"""What a replay shows: the program's output, how the program ended, and how that compares with the journal."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TextIO

from tartlet_common.abi import Op
from tartlet_common.errors.registry import Diverged, ProgramFailed, TartletError
from tartlet_common.errors.tracebacks import error_line
from tartlet_runtime.abi.commands import Command
from tartlet_runtime.journal.records import JournalRecord, Kind

Show = Callable[[Command], None]
_STDERR = 2


class Shown:
    """Shows a program's output and messages as they are given."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err
        self._at_line_start = True

    def __call__(self, command: Command) -> None:
        """Show a command if it is output."""
        if command.op == Op.SEND or (command.op == Op.LOG and command.a != _STDERR):
            self._write(command.payload)
        elif command.op == Op.LOG:
            self._err.buffer.write(command.payload)
            self._err.flush()

    def result(self, text: str) -> None:
        """Show what `main` returned."""
        self.end_line()
        if text:
            self._write(text.encode(errors="replace").rstrip(b"\n") + b"\n")

    def end_line(self) -> None:
        """Begin a new line unless one has begun."""
        if not self._at_line_start:
            self._write(b"\n")

    def _write(self, data: bytes) -> None:
        if data:
            self._out.flush()
            self._out.buffer.write(data)
            self._out.flush()
            self._at_line_start = data.endswith(b"\n")


@dataclass(frozen=True, slots=True)
class RecordedEnd:
    """How a recorded run ended."""

    result: str = ""
    error: TartletError | None = None

    def __str__(self) -> str:
        """Return the end in words."""
        if self.error is None:
            return f"the result {self.result!r}" if self.result else "no result"
        if isinstance(self.error, ProgramFailed):
            return f"ProgramFailed: {error_line(str(self.error.fields.get('traceback', '')))}"
        return f"{self.error.name}: {self.error}"


def recorded_end(records: Sequence[JournalRecord]) -> RecordedEnd | None:
    """Return how a journal's run ended; None if the journal doesn't say, because its runtime died or it goes on."""
    for record in reversed(records):
        if record.kind == Kind.END:
            told = json.loads(record.delivery)
            if "error" in told:
                return RecordedEnd(error=TartletError.from_wire(told["error"], told["fields"]))
            return RecordedEnd(told["result"])
    return None


@dataclass(slots=True)
class Outcome:
    """How far a replay came."""

    total: int  # deliveries of the journal
    told: int = 0
    ended: bool = False
    text: str = ""
    failure: str = ""  # the traceback
    diverged: Diverged | None = None
    other_python: bool = False  # than the recorded one
    quit: bool = False  # the user has ended the replay

    def closing_line(self, then: RecordedEnd | None) -> str:
        """Return one line about the replay's end, beside that of the journal."""
        far = f"replayed {self.told} of {self.total} deliveries"
        if self.quit:
            return far
        if not self.ended:
            if self.told < self.total:
                return f"{far}; the program stands at its next wait"
            ended = f"; the run ended there in {then}" if then is not None else ", where the journal ends"
            return f"{far}; the program waits{ended}"
        now = RecordedEnd(self.text, ProgramFailed(traceback=self.failure) if self.failure else None)
        if self.told < self.total:
            return f"{far}; the program ended early in {now}"
        if then is None:
            return f"{far}; the program ended in {now}, and the journal doesn't say how it ended then"
        return f"{far}; ended {'as' if self.same_end(then) else f'in {now}, other than'} then, in {then}"

    def same_end(self, then: RecordedEnd) -> bool:
        """Whether the program ended as it did then. Versions of Python word the same failure differently."""
        if not self.failure:
            return then.error is None and then.result == self.text
        if not isinstance(then.error, ProgramFailed):
            return self.failure == f"{then.error.name}: {then.error}" if then.error is not None else False
        now, before = _last(self.failure), _last(str(then.error.fields.get("traceback", "")))
        return now == before or (self.other_python and now.partition(":")[0] == before.partition(":")[0])


def _last(traceback: str) -> str:
    return traceback.strip().rpartition("\n")[2]
