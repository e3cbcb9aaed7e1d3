"""Runs a recorded program again in the sandbox, and notes its commands with the lines of the program that gave them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from inferlet._running.bundle import Bundle
from tartlet_common.bundles.checking import check_bundle
from tartlet_common.bundles.layout import guest_text, is_bundle
from tartlet_common.bundles.packing import amended
from tartlet_common.errors.registry import Diverged, InvalidSource, TartletError
from tartlet_protos import common_pb2
from tartlet_runtime.abi.commands import Command, commands_of
from tartlet_runtime.abi.guest import Delivery
from tartlet_runtime.budget.ledger import Ledger
from tartlet_runtime.guests.build import python_guest
from tartlet_runtime.journal.records import CommandDigest, JournalHeader, JournalRecord
from tartlet_runtime.journal.replay import run_guest
from tartlet_runtime.wasm import HostConfig, LinkedModule, WasmHost
from tartlet_runtime.wasm.compiling.aot import AotCache
from tartlet_runtime.wasm.compiling.engine_flags import flags_digest
from tartlet_runtime.wasm.types import WaitRequest

_TRACER = """

def __note_lines():
    import os, sys
    from inferlet._wire.channel import Channel
    record = Channel.record
    own, root = __note_lines.__code__.co_filename, ROOT
    def is_own(name):
        return name == own or (root and name.startswith(root) and not name.startswith(root + "site-packages/"))
    def noted(self, *args, **kwargs):
        ticket, frame = record(self, *args, **kwargs), sys._getframe(1)
        while frame is not None and not is_own(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is not None:
            os.write(1, b"%d %d %s\\n" % (ticket, frame.f_lineno, frame.f_code.co_filename.encode("utf-8", "replace")))
        return ticket
    noted.__code__ = noted.__code__.replace(co_filename="<lines>")
    Channel.record = noted
__note_lines()
del __note_lines
"""
"""Stands behind a program's source. It tells the host, past the SDK, which line gave each command.

ROOT is the directory of a program of several files, and "" for other programs.
"""

_NUMBER = re.compile(r"[0-9]{1,10}")
_MAIN = re.compile(rb"^(async )?def main\b", re.MULTILINE)

AtWait = Callable[["Rerun", JournalRecord], None]


def recorded_digests(rerun: Rerun, record: JournalRecord) -> None:
    """Check that the commands so far are those of the journal.

    Raises:
        Diverged: they aren't.
    """
    if record.digest != rerun.digest.value():
        raise Diverged(wait=rerun.at + 1, detail=f"the program's commands are not those it gave then{rerun.where()}")


@dataclass(slots=True)
class Rerun:
    """The host of a guest that is told what the journal says."""

    header: JournalHeader
    records: Sequence[JournalRecord]  # deliveries
    check: AtWait = recorded_digests
    on_command: Callable[[Command], None] | None = None
    commands: list[Command] = field(default_factory=list)
    lines: dict[int, str] = field(default_factory=dict)  # FILE:LINE by ticket
    waits: list[int] = field(default_factory=list)  # commands before each wait
    digest: CommandDigest = field(default_factory=CommandDigest)
    at: int = 0  # deliveries told
    ended: bool = False
    text: str = ""
    error: TartletError | None = None

    def on_submit(self, data: bytes) -> None:
        """Note the commands."""
        self.digest.add(data)
        for command in commands_of(data):
            if self.on_command is not None:
                self.on_command(command)
            self.commands.append(command)

    def on_output(self, stream: int, data: bytes) -> None:
        """Take the lines that the tracer tells."""
        for line in data.decode(errors="replace").splitlines():
            ticket, _, place = line.partition(" ")
            number, _, file = place.partition(" ")
            if _NUMBER.fullmatch(ticket) and _NUMBER.fullmatch(number):  # the program may print anything
                self.lines[int(ticket)] = f"{file}:{number}"

    def on_wait(self, request: WaitRequest) -> Delivery | None:
        """Return what the program was told then, or None at the end of the journal."""
        self.waits.append(len(self.commands))
        if self.at == len(self.records):
            return None
        record = self.records[self.at]
        self.check(self, record)
        self.at += 1
        return Delivery(record.delivery, self.header.start_ns + record.clock_ns)

    def on_sleep(self, duration_us: int) -> bool:
        """Return True: nobody waits in a replay."""
        return True

    def line_of(self, command: Command) -> str:
        """Return the place of the program that gave a command, or "" if the SDK gave it by itself."""
        return self.lines.get(command.ticket, "")

    def where(self) -> str:
        """Return words about the last command and its line."""
        if not self.commands:
            return "; it gave none so far"
        last = self.commands[-1]
        place = self.line_of(last)
        return f"; the last one is {last}" + (f", at {place}" if place else "")


class Sandbox:
    """The Wasm host of replays, with the Python component of this release."""

    def __init__(self, wasm: WasmHost) -> None:
        """Load nothing yet."""
        self._wasm = wasm
        self._modules: dict[str, LinkedModule] = {}

    def identity(self, header: JournalHeader, source: bytes) -> str:
        """Return what this sandbox would name as the component of a journal.

        Raises:
            StartFailed: the Python component isn't built.
            InvalidSource: a native program.
        """
        if not header.component:
            raise InvalidSource(detail="a native program was recorded, which no sandbox can run again: use --native")
        if header.language == common_pb2.Source.PYTHON:
            return f"{python_guest().digest}-{flags_digest()}"
        return f"{hashlib.sha256(source).hexdigest()}-{flags_digest()}"

    def check(self, header: JournalHeader, source: bytes) -> None:
        """Check that the journal was written with this component and these flags.

        Raises:
            InvalidSource: it was written with others.
        """
        own = self.identity(header, source)
        if own != header.component:
            detail = (
                f"the journal was written with the component {header.component[:12]}, and this release has {own[:12]}"
            )
            raise InvalidSource(detail=f"{detail}: use the release that wrote it, or --native")

    def run(self, rerun: Rerun, source: bytes, args: Sequence[str] | None = None) -> Rerun:
        """Run a source with the identity of `rerun.header`, until it ends or stands at a wait past the journal's end.

        Raises:
            Diverged: a check said so.
            StartFailed: the Python component isn't built.
        """
        header = rerun.header
        is_python = header.language == common_pb2.Source.PYTHON
        text = _traced(source, header.filename) if is_python else ""
        outcome = run_guest(
            self._wasm, self._module(header, source), header, rerun, text, header.args if args is None else args
        )
        if outcome is None:
            return rerun
        if isinstance(outcome.error, Diverged):
            raise outcome.error
        if outcome.cause is not None and not isinstance(outcome.cause, TartletError):
            raise outcome.cause
        rerun.ended, rerun.text, rerun.error = True, outcome.text, outcome.error
        return rerun

    def _module(self, header: JournalHeader, source: bytes) -> LinkedModule:
        key = self.identity(header, source)
        if key not in self._modules:
            is_python = header.language == common_pb2.Source.PYTHON
            self._modules[key] = self._wasm.load(python_guest() if is_python else self._wasm.aot.compile(source))
        return self._modules[key]


def _traced(source: bytes, filename: str) -> str:
    """Return a Python program with the tracer behind its text, in the form in which the guest takes it.

    Raises:
        InvalidBundle, BundleTooLarge, NativePackage: the source is an archive that is refused.
    """

    def behind(text: bytes, root: str) -> bytes:
        if not _MAIN.search(text):  # everything is over when the tracer begins
            return text
        return text + _TRACER.replace("ROOT", repr(root)).encode()

    if not is_bundle(source):
        return behind(source, "").decode()
    entry = check_bundle(source)
    root = Bundle(guest_text(source), filename).root
    return guest_text(amended(source, entry, lambda text: behind(text, root)))


@contextmanager
def sandbox(ledger: Ledger | None = None) -> Iterator[Sandbox]:
    """Open a sandbox for replays. Compilers take memory from `ledger`."""
    with WasmHost(HostConfig(max_guests=2), aot=AotCache(ledger=ledger)) as wasm:
        yield Sandbox(wasm)
