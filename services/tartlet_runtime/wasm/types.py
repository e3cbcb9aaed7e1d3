"""Values that the embedder of a guest sees: phases, limits, outcomes, hooks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from typing import Protocol

from tartlet_common.errors.registry import TartletError

FOREVER_US = 0xFFFF_FFFF_FFFF_FFFF
"""`timeout_us` of a wait without a time limit."""

STDOUT = 1
STDERR = 2


class Phase(IntEnum):
    """Where a guest stands after a step."""

    READY = 0  # can be stepped: new, delivered to, or its slice was over
    WAITING = 1  # inside wait(); `Fiber.wait_request` says for what; deliver(), then step()
    SLEEPING = 2  # inside a sleep of `Fiber.sleep_us`; wake() after that time, then step()
    ENDED = 3  # `Fiber.outcome` says how


class OutcomeKind(Enum):
    """How a guest ended."""

    OK = auto()
    ERROR = auto()  # the program failed by itself: exception (Python), non-zero status (core)
    TRAP = auto()  # the sandbox stopped it: memory, stack, unreachable, CPU limit, denied call
    KILLED = auto()  # kill() was called
    FAULT = auto()  # a hook raised


@dataclass(frozen=True, slots=True)
class FiberOutcome:
    """How a guest ended.

    `text` is the program's result (OK) or its traceback (ERROR). `error` is None for OK, else the typed error to
    answer with. `cause` is the exception that a hook raised (FAULT), if it was no `TartletError`.
    """

    kind: OutcomeKind
    text: str = ""
    error: TartletError | None = None
    cause: BaseException | None = None


@dataclass(frozen=True, slots=True)
class GuestLimits:
    """What one guest may use."""

    memory_bytes: int = 256 << 20  # linear memory; at most HostConfig.max_memory_bytes
    reserved_bytes: int = 1 << 62  # taken before the guest begins; it takes the rest as it grows
    cpu_slice_us: int = 2_000  # computes at most this long (rounded up to ticks) before step() returns READY
    cpu_burst_s: float = 10.0  # computing this long without a wait or sleep ends it (ProgramCpuExceeded)
    submit_bytes: int = 4 << 20  # one submit may carry this much, else it traps


@dataclass(frozen=True, slots=True)
class WaitRequest:
    """What a suspended guest waits for."""

    max_records: int
    timeout_us: int  # FOREVER_US: no time limit


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a wait answers, and the guest's new time (nanoseconds since the epoch; never moves its clock back)."""

    data: bytes
    time_ns: int


class GuestHooks(Protocol):
    """What a guest does, told to its embedder in the guest's own order, from within `step`.

    A hook that raises ends the guest with `OutcomeKind.FAULT` and that error.
    """

    def on_submit(self, data: bytes) -> None:
        """Handle bytes that the guest submitted."""

    def on_output(self, stream: int, data: bytes) -> None:
        """Handle bytes that a component wrote to stdout (1) or stderr (2)."""

    def on_wait(self, request: WaitRequest) -> Delivery | None:
        """Answer a wait at once (a replay does), or None: the guest is suspended until `Fiber.deliver`."""

    def on_sleep(self, duration_us: int) -> bool:
        """Return whether a sleep is over at once (in a replay); False: suspended until `Fiber.wake`."""


class QuietHooks:
    """Hooks that collect; the base for tests and small embedders."""

    def __init__(self) -> None:
        """Start with nothing seen."""
        self.submitted: list[bytes] = []
        self.output: list[tuple[int, bytes]] = []

    def on_submit(self, data: bytes) -> None:
        """Keep the bytes."""
        self.submitted.append(data)

    def on_output(self, stream: int, data: bytes) -> None:
        """Keep stream and bytes."""
        self.output.append((stream, data))

    def on_wait(self, request: WaitRequest) -> Delivery | None:
        """Suspend."""
        return None

    def on_sleep(self, duration_us: int) -> bool:
        """Suspend the guest."""
        return False
