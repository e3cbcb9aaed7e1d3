"""What programs live in: the parts of the runtime that each program uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tartlet_common.clock import Clock
from tartlet_runtime.answers.local_ops import LocalOps
from tartlet_runtime.budget.holding import Holding
from tartlet_runtime.budget.ledger import Use
from tartlet_runtime.program.driver import Driver

P = TypeVar("P")
P_contra = TypeVar("P_contra", contravariant=True)


class Link(Protocol[P_contra]):
    """Control, as a program sees it."""

    def commands(self, program: P_contra, count: int, records: bytes, payload: bytes) -> None:
        """Send records at the end of this turn."""

    def remember(self, program: P_contra) -> None:
        """Tell control all that a program has sent and was told, before what it sends from now on."""

    def ended(self, program: P_contra, *, failed: bool) -> bool:
        """Tell control that a program has ended; return whether control will answer with `Program.settled`."""


@dataclass(slots=True)
class World(Generic[P]):
    """What programs live in; wired by the table of programs."""

    driver: Driver
    link: Link[P]
    ops: LocalOps
    clock: Clock
    on_ended: Callable[[P], None]
    on_accepted: Callable[[P], None]
    """Called when control has accepted a launch: a guest will be made, as soon as it is the program's turn."""
    memory: Callable[[Use], Holding]
    """Makes the account of what is kept for one program."""
