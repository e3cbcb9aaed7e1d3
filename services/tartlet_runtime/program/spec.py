"""What a program is launched as, and the world it lives in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from tartlet_common.clock import Clock
from tartlet_runtime.abi.guest import Guest
from tartlet_runtime.abi.limits import ProgramLimits
from tartlet_runtime.answers.local_ops import LocalOps
from tartlet_runtime.program.driver import Driver

if TYPE_CHECKING:
    from tartlet_runtime.program.program import Program


class State(IntEnum):
    """Where a program stands."""

    STARTING = 0  # control hasn't answered yet
    RUNNING = 1
    ENDING = 2  # its code is gone; control frees what it held
    ENDED = 3


@dataclass(slots=True)
class Shared:
    """What is worked out once for all programs that were launched alike."""

    journal_text: str = ""  # of their journals' headers


@dataclass(slots=True)  # not frozen: each launch makes one, and that takes thrice as long then
class ProgramSpec:
    """What was launched."""

    program_id: str
    name: str
    language: int  # programs_pb2.Source.Language
    filename: str
    source: bytes
    digest: str  # sha-256 of source, hex
    args: tuple[str, ...]
    model: str
    tenant: str
    idempotency_key: str
    limits: ProgramLimits
    durable: bool
    seed: bytes
    seeded: bool  # the launch asked for that seed
    trace: Mapping[str, str] = field(default_factory=dict)
    shared: Shared = field(default_factory=Shared)

    def again(self, program_id: str, seed: bytes) -> ProgramSpec:
        """The same with another identity: what `dataclasses.replace` does, in a third of its time."""
        return ProgramSpec(
            program_id,
            self.name,
            self.language,
            self.filename,
            self.source,
            self.digest,
            self.args,
            self.model,
            self.tenant,
            self.idempotency_key,
            self.limits,
            self.durable,
            seed,
            self.seeded,
            self.trace,
            self.shared,
        )


class Link(Protocol):
    """Control, as a program sees it."""

    connected: bool

    def commands(self, program: Program, count: int, records: bytes, payload: bytes) -> None:
        """Send records at the end of this turn."""

    def ended(self, program: Program, *, failed: bool) -> bool:
        """Tell control; whether it will answer with `Program.settled`."""


class ReaderCall(Protocol):
    """A client's stream, as a program sees it."""

    def mark(self, program: Program) -> None:
        """There is new output."""

    def wake(self) -> None:
        """There is something to send."""


MakeGuest = Callable[["Program"], Guest]


@dataclass(slots=True)
class World:
    """What a program lives in; wired in `app`."""

    driver: Driver
    link: Link
    ops: LocalOps
    clock: Clock
    on_ended: Callable[[Program], None]
    on_accepted: Callable[[Program], None]
    """Control has accepted a launch: a guest will be made, as soon as it is its turn."""
