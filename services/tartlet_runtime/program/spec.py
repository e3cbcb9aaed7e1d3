"""What a program is launched as, and where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from tartlet_common.capabilities import Grant
from tartlet_common.engine.pools import Reach
from tartlet_protos import common_pb2
from tartlet_runtime.abi.limits import ProgramLimits


class State(IntEnum):
    """Where a program is in its life."""

    STARTING = 0  # control hasn't answered yet
    RUNNING = 1
    ENDING = 2  # its guest has ended; control frees what it held
    ENDED = 3


@dataclass(frozen=True, slots=True)
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
    pool: str  # as in the launch: TENANT/POOL, TENANT/*, POOL or ""
    tenant: str
    idempotency_key: str
    limits: ProgramLimits
    durable: bool
    degrades: bool  # it goes on without its journal where that can't be stored
    seed: bytes
    seeded: bool  # the launch asked for that seed
    tied: bool = False  # it ends when the client of its launch goes away
    grants: tuple[Grant, ...] = ()  # what it may reach: what all of them allow
    session: str = ""  # the runs of a session count as one program
    parent_session: str = ""
    ends_session: bool = False
    parent: str = ""  # the id of the program that has started it
    detached: bool = False  # it outlives its parent
    trace: Mapping[str, str] = field(default_factory=dict)

    @property
    def reach(self) -> Reach:
        """The engines that the program may use."""
        return Reach.of(self.tenant, self.pool)

    @property
    def recoverable(self) -> bool:
        """Whether another runtime can begin the program again from its journal."""
        return self.durable and self.language != common_pb2.Source.NATIVE
