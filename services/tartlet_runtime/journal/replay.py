"""Running a program again from its journal, with no engine and no control.

The guest is told what the journal says it was told, at the times it was told; what it asks for must be what it asked
for then. `Replayer` is the `Host` of such a guest; `replay_wasm` runs a sandboxed one to the journal's end. A journal
that ends in the middle of the program's life (a crash, a torn tail) leaves the guest standing at its last wait, from
which it could go on live.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tartlet_common.bundles.layout import guest_text
from tartlet_common.errors.registry import Diverged, InvalidSource, TartletError
from tartlet_protos import common_pb2
from tartlet_runtime.abi.guest import Delivery, Phase
from tartlet_runtime.journal.records import CommandDigest, JournalHeader, JournalRecord, Kind
from tartlet_runtime.wasm import GuestClock, GuestLimits, GuestRandom, LinkedModule, WasmHost
from tartlet_runtime.wasm.types import FiberOutcome, GuestHooks, WaitRequest

_MAX_SLICES = 1_000_000


@dataclass(slots=True)
class Replayer:
    """Answers a guest's waits from a journal and compares its commands; collects them, for tests and for executors."""

    header: JournalHeader
    records: Sequence[JournalRecord]
    submissions: list[bytes] = field(default_factory=list)
    output: list[tuple[int, bytes]] = field(default_factory=list)
    digest: CommandDigest = field(default_factory=CommandDigest)
    at: int = 0  # records told

    def on_submit(self, data: bytes) -> None:
        """Keep it; the next wait compares."""
        self.submissions.append(data)
        self.digest.add(data)

    def on_output(self, stream: int, data: bytes) -> None:
        """Keep it; it was shown once already."""
        self.output.append((stream, data))

    def on_wait(self, request: WaitRequest) -> Delivery | None:
        """Return what the program was told then, or None at the journal's end.

        Raises:
            Diverged: its commands so far aren't those of the journal.
        """
        if self.at == len(self.records):
            return None
        record = self.records[self.at]
        if record.digest != self.digest.value():
            raise Diverged(wait=self.at + 1, detail="the program's commands are not those it gave then")
        self.at += 1
        return Delivery(record.delivery, self.header.start_ns + record.clock_ns)

    def on_sleep(self, duration_us: int) -> bool:
        """Nobody waits in a replay."""
        return True


@dataclass(frozen=True, slots=True)
class Replayed:
    """How a replay ended."""

    submissions: list[bytes]
    output: list[tuple[int, bytes]]
    ended: bool  # else it stands at a wait past the journal's end
    text: str = ""
    error: TartletError | None = None  # how the program ended, if it did


def replay_wasm(
    wasm: WasmHost, module: LinkedModule, identity: str, header: JournalHeader, records: Sequence[JournalRecord]
) -> Replayed:
    """Run a sandboxed program from its journal.

    Args:
        wasm: the host to run it on.
        module: its module, or the Python component.
        identity: of that module and the host's flags (`WasmGuests.identity`); it must be the journal's.
        header: from `journal.read_journal`.
        records: the same.

    Raises:
        InvalidSource: the journal was written with another component or other flags.
        Diverged: its commands aren't those of the journal.
    """
    if identity != header.component:
        owner = header.component or "a native program, which no sandbox can run again"
        raise InvalidSource(detail=f"the journal belongs to {owner}, this is {identity}")
    records = [record for record in records if record.kind == Kind.DELIVERY]
    replayer = Replayer(header, records)
    is_python = header.language == common_pb2.Source.PYTHON
    outcome = run_guest(wasm, module, header, replayer, guest_text(header.source) if is_python else "", header.args)
    if outcome is None:
        return Replayed(replayer.submissions, replayer.output, ended=False)
    if isinstance(outcome.error, Diverged):
        raise outcome.error
    if replayer.at < len(records):
        raise Diverged(wait=replayer.at + 1, detail="the program ended, the journal goes on")
    return Replayed(replayer.submissions, replayer.output, ended=True, text=outcome.text, error=outcome.error)


def run_guest(
    wasm: WasmHost, module: LinkedModule, header: JournalHeader, hooks: GuestHooks, text: str, args: Sequence[str]
) -> FiberOutcome | None:
    """Run a guest with the seed, the time and the limits of a journal until it ends, or stands at a wait.

    Args:
        wasm: the host to run it on.
        module: its module, or the Python component.
        header: of the journal.
        hooks: what answers the guest.
        text: a component's program; "" for a core module.
        args: the guest's arguments.

    Returns:
        How it ended; None if it waits for what `hooks` didn't answer. It is killed then.
    """
    limits = GuestLimits(
        memory_bytes=int(header.limits["memory_bytes"]), cpu_burst_s=float(header.limits["cpu_slice_s"])
    )
    guest = wasm.create(
        module, hooks=hooks, limits=limits, clock=GuestClock(header.start_ns), random=GuestRandom(header.seed)
    )
    guest.start(text, header.filename, args)
    for _ in range(_MAX_SLICES):
        phase = guest.step()
        if phase is not Phase.READY:
            break
    outcome = guest.outcome
    guest.kill("the replay is over")
    return outcome
