"""Runs a recorded Python program again as an ordinary program of this process, fed by its journal, under pdb.

The source of a sandboxed program runs unchanged. It has the sandbox's time and randomness (`virtual`), and what it
prints becomes commands, as there, beside being shown. At every wait its commands are compared with the journal.
"""

from __future__ import annotations

import contextlib
import pdb  # noqa: T100 - a debugger is what this module offers
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TextIO

import inferlet.errors
from inferlet._running import guest
from inferlet._running.bundle import PACKAGES, Bundle, is_bundle
from inferlet._wire import host
from inferlet._wire.channel import Channel, channel
from tartlet_common.errors.registry import Diverged
from tartlet_runtime.abi.commands import commands_of
from tartlet_runtime.journal.records import CommandDigest, JournalHeader, JournalRecord
from tartlet_runtime.timetravel import virtual
from tartlet_runtime.timetravel.report import Outcome, Show, Shown
from tartlet_runtime.wasm.determinism import GuestClock, GuestRandom


class _Stop(SystemExit):
    """Ends the program where it stands: past its journal, or because it has diverged, or at the user's wish."""


class Debugger(pdb.Pdb):
    """pdb over one program that has no file."""

    def __init__(self, filename: str, stdin: TextIO, stdout: TextIO, stops: Callable[[], None]) -> None:
        self.stops = stops
        self.has_quit = False
        super().__init__(stdin=stdin, stdout=stdout, skip=virtual.own_modules(), nosigint=True)
        self.use_rawinput = stdin.isatty()
        self.mainpyfile = filename
        self.fncache: dict[str, str] = {filename: filename}  # else it would be looked for in this directory

    def lookupmodule(self, filename: str) -> str | None:
        """Return the file that a user means by a name."""
        own = self.mainpyfile
        return own if filename in (own, Path(own).name, Path(own).stem) else super().lookupmodule(filename)

    def do_quit(self, arg: str) -> bool:
        """End the program."""
        self.has_quit = True
        self.stops()
        raise _Stop(1)

    do_q = do_exit = do_quit

    def do_EOF(self, arg: str) -> bool:  # noqa: N802 - pdb's name
        """End the program, because nobody types any more."""
        self.message("")
        return self.do_quit(arg)

    def get_stack(
        self, frame: FrameType | None, trace: TracebackType | None
    ) -> tuple[list[tuple[FrameType, int]], int]:
        """Return the stack from the program's first frame on."""
        stack, at = super().get_stack(frame, trace)
        own = (i for i, (each, _) in enumerate(stack) if each.f_code.co_filename == self.mainpyfile)
        first = min(next(own, 0), at)
        return stack[first:], at - first

    def begin(self) -> None:
        """Stop at the next line of the program."""
        self.reset()
        self._wait_for_mainpyfile = True
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - frames that run already get no event of a call
        while frame is not None:
            if frame.f_code.co_filename == self.mainpyfile:
                frame.f_trace = self.trace_dispatch
            frame = frame.f_back
        sys.settrace(self.trace_dispatch)

    def post_mortem(self, trace: TracebackType | None) -> None:
        """Let the user look at the last line of the program that an exception came through."""
        frames: list[TracebackType] = []
        while trace is not None:
            frames.append(trace)
            trace = trace.tb_next
        own = [i for i, at in enumerate(frames) if at.tb_frame.f_code.co_filename == self.mainpyfile]
        if not own:
            return
        shown: TracebackType | None = None
        for at in reversed(frames[own[0] : own[-1] + 1]):
            shown = TracebackType(shown, at.tb_frame, at.tb_lasti, at.tb_lineno)
        self.reset()
        with contextlib.suppress(_Stop):
            self.interaction(None, shown)


class JournalBackend:
    """Answers the SDK's waits from a journal, and shows what the program writes."""

    def __init__(self, header: JournalHeader, records: Sequence[JournalRecord], clock: GuestClock, show: Show) -> None:
        self._header = header
        self._records = records
        self._clock = clock
        self._show = show
        self._digest = CommandDigest()
        self.at = 0
        self.until = 0
        self.debugger: Debugger | None = None
        self.diverged: Diverged | None = None
        self.lines: list[str] = []  # of the program, since the last wait
        self.is_stopped = False

    def submit(self, data: bytes) -> None:
        """Note the commands."""
        self._digest.add(data)
        for command in commands_of(data):
            self._show(command)

    def wait(self, max_records: int, timeout_us: int) -> bytes:
        """Return what the program was told then."""
        if self.at == len(self._records):
            self.stop()
            raise _Stop(1)
        record = self._records[self.at]
        if record.digest != self._digest.value():
            lines = ", ".join(dict.fromkeys(self.lines)) or "none"
            detail = f"the program's commands are not those it gave then; lines that gave commands since: {lines}"
            self.diverged = Diverged(wait=self.at + 1, detail=detail)
            self.stop()
            raise _Stop(1)
        self.at += 1
        self.lines.clear()
        self._clock.advance_to(self._header.start_ns + record.clock_ns)
        if self.debugger is not None and self.at == self.until:
            self.debugger.begin()
        return record.delivery

    def stop(self) -> None:
        """Let no task of the program go on."""
        self.is_stopped = True
        channel.killed = channel.killed or inferlet.errors.TartletError()


def run(
    header: JournalHeader,
    records: Sequence[JournalRecord],
    source: str,
    args: Sequence[str],
    *,
    until: int | None,
    debug: bool = True,
) -> Outcome:
    """Run a recorded program in this process.

    Args:
        header: of the journal.
        records: its deliveries.
        source: the program's text, or its archive with one character for each byte.
        args: its arguments.
        until: stop in the debugger behind so many deliveries; None: at the program's first line.
        debug: whether pdb is wanted.

    Returns:
        How the program ended, and how far the journal went.
    """
    clock, chance = GuestClock(header.start_ns), GuestRandom(header.seed)
    terminal = sys.stdin, sys.stdout, sys.stderr
    shown = Shown(terminal[1], terminal[2])
    backend = JournalBackend(header, records, clock, shown)
    host.backend = backend
    bundle = Bundle(source, header.filename) if is_bundle(source) else None
    main = header.filename if bundle is None else bundle.entry
    _note_lines(main, "" if bundle is None else bundle.root, backend.lines)
    debugger = Debugger(main, terminal[0], terminal[1], backend.stop) if debug else None
    if debugger is not None:
        sys.breakpointhook = lambda *_, **__: debugger.begin()
        backend.debugger, backend.until = debugger, until or 0
    virtual.install(clock, chance)
    outcome = Outcome(total=len(records), other_python=bool(header.component))
    try:
        if debugger is not None and not until:
            debugger.begin()
        outcome.text = _execute(header, source, args, chance) or ""
        outcome.ended = True
    except BaseException as error:  # noqa: BLE001 - whatever a program raises is its result
        sys.settrace(None)
        if not backend.is_stopped:
            outcome.ended = True
            outcome.failure = getattr(error, "guest_traceback", None) or f"{type(error).__name__}: {error}"
            sys.stdin, sys.stdout, sys.stderr = terminal
            if debugger is not None and not isinstance(error, guest.ProgramExit):
                debugger.message(f"{type(error).__name__}: {error}")
                debugger.post_mortem(error.__traceback__)
    finally:
        sys.settrace(None)
        sys.stdin, sys.stdout, sys.stderr = terminal
        shown.end_line()
    outcome.told, outcome.diverged = backend.at, backend.diverged
    outcome.quit = debugger is not None and debugger.has_quit and not outcome.ended
    return outcome


def _execute(header: JournalHeader, source: str, args: Sequence[str], chance: GuestRandom) -> str | None:
    if header.component:
        return guest.run(source, header.filename, args)
    guest.start(args)
    guest.seed_random(chance.take(16))
    try:
        return guest.execute(source, header.filename, args)
    finally:
        guest.flush()


def _note_lines(main: str, root: str, lines: list[str]) -> None:
    """Note the line of the program that gives each command; `root` is the directory of a program of several files."""
    record = Channel.record

    def is_own(filename: str) -> bool:
        return filename == main or bool(root and filename.startswith(root) and PACKAGES not in filename)

    def noted(self: Channel, *args: Any, **kwargs: Any) -> int:
        ticket = record(self, *args, **kwargs)
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the program's line
        while frame is not None and not is_own(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is not None:
            place = frame.f_code.co_filename
            lines.append(f"{'' if place == main else place.removeprefix(root) + ':'}{frame.f_lineno}")
        return ticket

    Channel.record = noted  # type: ignore[method-assign]
