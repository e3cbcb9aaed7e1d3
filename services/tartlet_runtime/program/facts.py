"""What is known of a program beside its parts: its launch, its marks, and what is held for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tartlet_common.abi import Record
from tartlet_common.capabilities import Grant
from tartlet_common.clock import Clock
from tartlet_common.errors.registry import TartletError
from tartlet_common.pauses import Pause, Pauses
from tartlet_runtime.abi.guest import Guest
from tartlet_runtime.abi.next_run import NextRun
from tartlet_runtime.children.children import Children
from tartlet_runtime.journal.records import JournalRecord
from tartlet_runtime.program.recorder import Recorder
from tartlet_runtime.program.spans import ProgramSpan
from tartlet_runtime.program.spec import ProgramSpec, State
from tartlet_runtime.web.exchange import Exchanges

_NOTED_S: Final = 0.5
"""A link that breaks and continues within this time makes no pause."""


class ProgramFacts:
    """Values of one program, which its state machine and its table change."""

    adopts = False
    """Whether it goes on as a program that control knows already."""

    def __init__(self, spec: ProgramSpec, handle: int, clock: Clock, asked_s: float, span: ProgramSpan | None) -> None:
        """Begin as a program that starts. A client's request for it came at `asked_s`."""
        self.spec = spec
        self.program_id = spec.program_id
        self.model = spec.model
        self.reach = spec.reach
        self.handle = handle
        self.span = span
        self.state = State.STARTING
        self.error: TartletError | None = None
        self.clock_start_ns = clock.unix_ns()
        """The guest's time at its start, nanoseconds since the epoch."""
        self.lag_ns = 0
        """How far the guest's time is behind the wall clock, nanoseconds: a fork's begins in the past."""
        self.is_whole = False
        """Whether its past is to reach control as its history."""
        self.begins_with: Sequence[JournalRecord] = ()
        """The records of another journal that its own begins with."""
        self.asked_s = asked_s
        """Monotonic seconds at which the request came. The last programs of a large one are launched seconds later."""
        self.made_s = clock.now()
        self.pauses = Pauses()
        self.without_control_s: float | None = None  # since when the link with control is broken, monotonic seconds
        self.has_engine_state = False  # some of its commands were sent to control
        self.departed = False  # control was told of its end
        self.queued = False  # in the driver's deque
        self.recorder: Recorder | None = None  # None: not durable
        self.accepted = False  # the client was told that it runs
        self.starters: list[Callable[[TartletError | None, str], None]] = []
        self.unsent_commands = 0
        self.kept_bytes = 0  # bytes of output kept after its end
        self.reserved_bytes = 0  # of the process's memory, from its launch to its end
        self.guest: Guest | None = None  # made in its first turn
        self.eager_bytes = 0
        self.next_run: NextRun | None = None  # which begins when this run has ended well
        self.web = Exchanges()
        self.children = Children()

    @property
    def args(self) -> tuple[str, ...]:
        """The arguments of its launch."""
        return self.spec.args

    @property
    def tenant(self) -> str:
        """Whose program it is."""
        return self.spec.tenant

    @property
    def grants(self) -> tuple[Grant, ...]:
        """What its launch and its entry in the catalogue allow."""
        return self.spec.grants

    @property
    def max_children(self) -> int:
        """How many programs it may start."""
        return self.spec.limits.children

    @property
    def is_recorded(self) -> bool:
        """Whether a journal keeps what it is told."""
        return self.recorder is not None and not self.recorder.is_broken

    def leave(self, action: Callable[[], None]) -> None:
        """Do what leaves the program, once all is stored that led to it."""
        if self.recorder is None:
            action()
        else:
            self.recorder.leave(action)

    @property
    def goes_on(self) -> bool:
        """Whether the program begins its next run where it would end."""
        return self.next_run is not None and self.error is None

    @property
    def can_begin_again(self) -> bool:
        """Whether another runtime can begin the program again from its journal."""
        return self.spec.recoverable and self.recorder is not None and not self.recorder.is_broken

    @property
    def is_recovering(self) -> bool:
        """Whether its guest is told again what an earlier copy was told."""
        return False

    @property
    def stands_still(self) -> bool:
        """Whether it can't go on, because a part of the system is gone that it uses."""
        return self.is_recovering or self.pauses.go_on or self.without_control_s is not None

    def paused(self, over: Pause | None, *, earlier: bool = False) -> None:
        """Note that the program stands still, or for how long the program stood still.

        Args:
            over: the pause that is over; None: a pause begins.
            earlier: the pause is over, and its beginning was not told.
        """
        if over is None:
            self.pauses.begin()
            return
        (self.pauses.add if earlier else self.pauses.end)(over)
        if self.span is not None and not earlier:
            self.span.recovering(over)

    def pauses_at(self, now_s: float) -> list[Pause]:
        """Return its last pauses, with the time for which the link with control has been broken."""
        since_s = self.without_control_s
        return [*self.pauses.last, *([] if since_s is None else [Pause("control", now_s - since_s)])]

    def control_away(self, now_s: float) -> None:
        """Note that the link with control is broken: what the program asks of engines isn't answered."""
        if self.has_engine_state and self.state < State.ENDING and self.without_control_s is None:
            self.without_control_s = now_s

    def control_back(self, now_s: float, *, resumed: bool) -> None:
        """Note that the link with control goes on, or that another one has begun."""
        since_s, self.without_control_s = self.without_control_s, None
        if not resumed:
            self.pauses.forget_open()
        if since_s is not None and (not resumed or now_s - since_s >= _NOTED_S):
            self.paused(Pause("control", now_s - since_s))

    def continue_with(self, record: Record, payload: bytes) -> None:
        """Begin the next run that a CONTINUE asks for when this one has ended well.

        Raises:
            InvalidArgument: it isn't as docs/abi.md says.
        """
        self.next_run = NextRun.of(record, payload)

    def tell_starters(self, error: TartletError | None, existing_program_id: str) -> None:
        """Answer the launches that wait for the program."""
        starters, self.starters = self.starters, []
        for answer in starters:
            answer(error, existing_program_id)
