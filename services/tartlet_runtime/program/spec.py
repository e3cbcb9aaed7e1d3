"""What a program is launched as, and where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from tartlet_runtime.abi.limits import ProgramLimits


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
