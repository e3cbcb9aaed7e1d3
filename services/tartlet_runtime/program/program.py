"""One program from launch to end: its state machine, and the `Host` that its guest talks to.

    STARTING --control's answer--> RUNNING --result, error, kill--> ENDING --control has freed it--> ENDED

What happens when something of it is full stands in docs/limits.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from tartlet_common.errors.registry import (
    ControlLost,
    DeadlineExceeded,
    FrameTooLarge,
    InternalError,
    TartletError,
    TooManyCommands,
)
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_protos import control_pb2, programs_pb2
from tartlet_runtime.abi.guest import STDERR, Delivery, Guest, Phase
from tartlet_runtime.abi.limits import MAX_MESSAGE_BYTES
from tartlet_runtime.abi.submission import Row, parse
from tartlet_runtime.answers.backlog import Backlog
from tartlet_runtime.answers.deferred import Deferred
from tartlet_runtime.journal.journal import Journal
from tartlet_runtime.program.inlet import Inlet
from tartlet_runtime.program.outlet import Outlet
from tartlet_runtime.program.output_log import LogEvent
from tartlet_runtime.program.spans import ProgramSpan
from tartlet_runtime.program.spec import MakeGuest, ProgramSpec, Shared, State, World
from tartlet_runtime.program.usage import UsageMeter

log = logging.getLogger(__name__)

_Event = programs_pb2.ProgramEvent
_SPEC_KEPT_BYTES = 4096  # of an ended program


class Program:
    """A launched program. All methods are called on the loop's thread.

    It has at most 30 attributes: with more, making each one's own dictionary takes as long as all that is in it.
    """

    def __init__(
        self, spec: ProgramSpec, handle: int, world: World, make_guest: MakeGuest, span: ProgramSpan | None = None
    ) -> None:
        """It does nothing until `started`."""
        self.spec = spec
        self.program_id = spec.program_id
        self.model = spec.model
        self.handle = handle
        self.span = span
        self.state = State.STARTING
        self.error: TartletError | None = None
        self.outlet = Outlet(self, spec.limits.output_bytes)
        self.usage = UsageMeter(world.clock.now())
        self.has_engine_state = False  # commands of it were sent to control
        self.queued = False  # in the driver's deque
        self._answered = False  # by control
        self.journal: Journal | None = None  # None: not durable
        self.accepted = False  # its launch was answered so
        self.stays = False  # when the client of a `run` goes: a launch with the same key was promised that
        self.starters: list[Callable[[TartletError | None, str], None]] = []
        self.unsent_commands = 0
        self.kept_bytes = 0  # of output, once it has ended
        self.guest: Guest | None = None  # made when it first runs
        self._world = world
        self._make_guest = make_guest
        self._result = ""
        self._backlog: Backlog[Program] = Backlog(world.ops.run, world.clock.now)
        self._outcome: tuple[TartletError | None, str] | None = None  # how it ended by itself, until `finish`
        self.deferred = Deferred()
        self.eager_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._inlet = Inlet(self, world)
        self._wait = self._inlet.wait

    @property
    def args(self) -> tuple[str, ...]:
        """What it was launched with."""
        return self.spec.args

    @property
    def clock_start_ns(self) -> int:
        """The guest's time at its start, nanoseconds since the epoch."""
        return self._inlet.clock_start_ns

    # ---- life ----

    @property
    def is_waiting(self) -> bool:
        """Whether its guest stands in a wait."""
        return self._wait.max_records is not None

    @property
    def awaits_control(self) -> bool:
        """Whether control hasn't answered its launch."""
        return self.state is State.STARTING and not self._answered

    def started(self, error: TartletError | None, existing_program_id: str = "") -> None:
        """Control's answer to ProgramStart (or to an announcement of a running program)."""
        if self.state is not State.STARTING:
            if error is not None:
                self.end(error)
            return
        if not self._answered:
            self._answered = True
            self._world.driver.starting -= 1
            if error is None and not existing_program_id:
                self._world.on_accepted(self)
        if error is not None or existing_program_id:
            self._tell_starters(error, existing_program_id)
            self._finish(error)
            return
        self._world.driver.begin(self)

    def _begin(self) -> bool:
        """Make the guest, now that it is its turn: of many launched at once the first run before the last are made."""
        try:
            self.guest = self._make_guest(self)
        except Exception as e:  # noqa: BLE001 - `_fail` tells all
            self._fail(e)
            return False
        self.state = State.RUNNING
        if self.spec.limits.deadline_s:
            late = DeadlineExceeded(deadline_s=self.spec.limits.deadline_s)
            self._deadline = self._world.driver.loop.call_later(self.spec.limits.deadline_s, self.end, late)
        if self.journal is not None:
            self._world.driver.journal(self)
        self._tell_starters(None, "")
        return True

    def end(self, error: TartletError | None) -> None:
        """End the program, whatever it does; the first end counts. Not to be called from within its guest's step."""
        if self.state < State.ENDING:
            self._outcome = None
            self._end(error, "")

    def _end(self, error: TartletError | None, result: str) -> None:
        was_starting = self.state is State.STARTING
        self.state = State.ENDING
        if error is None and len(result) > (limit := MAX_MESSAGE_BYTES // 4):
            error, result = FrameTooLarge(size=len(result), what="characters in the result", limit=limit), ""
        self.error, self._result = error, result
        self._cancel_timers()
        self.deferred.clear()
        if self.guest is not None:
            self.guest.close(error)
        if was_starting:
            if not self._answered:
                self._world.driver.starting -= 1
            self._tell_starters(error, "")
        if not self._world.link.ended(self, failed=error is not None):
            self._finish(error)

    def settled(self, settled: control_pb2.ProgramSettled) -> None:
        """Control has freed everything it held; a queue left poisoned is its failure."""
        if self.state is State.ENDING:
            self.usage.settled(settled)
            self._finish(self.error or error_from_proto(settled.poisoned))

    def _tell_starters(self, error: TartletError | None, existing_program_id: str) -> None:
        starters, self.starters = self.starters, []
        for answer in starters:
            answer(error, existing_program_id)

    def control_lost(self) -> None:
        """The stream to control broke: what the program had on engines is gone."""
        if self.state is State.ENDING and self._outcome is not None:
            self.finish()
        elif self.state is State.ENDING:
            self._finish(self.error)
        elif self.has_engine_state:
            self.end(ControlLost())

    def _finish(self, error: TartletError | None) -> None:
        self.state = State.ENDED
        self.error = error
        now = self._world.clock.now()
        self.usage.ended_s = now
        usage = self.usage.to_proto(now)
        data = self._result.encode("utf-8", "replace") if error is None else b""
        self.outlet.put(LogEvent(_Event.ENDED, data, error is None, error, usage))
        self._inlet.close()
        self.outlet.close()
        self._backlog.clear()
        spec = self.spec
        if len(spec.source) + len(spec.shared.journal_text) + sum(map(len, spec.args)) > _SPEC_KEPT_BYTES:
            self.spec = replace(spec, source=b"", args=(), shared=Shared())
        self._world.on_ended(self)
        self.guest = None

    def _cancel_timers(self) -> None:
        self._wait.cancel()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # ---- the driver's side ----

    def prepare(self) -> Guest | None:
        """Deliver what the guest waits for, if it is there; the guest, if `run` will let it compute."""
        if self.state is not State.RUNNING or self.outlet.stopped or self._wait.sleeping or self._backlog:
            return None
        guest = self.guest
        assert guest is not None
        if self._wait.max_records is None:
            return guest
        try:
            delivery = self._inlet.offer()
            if delivery is None:
                return None
            guest.deliver(delivery)
        except Exception as e:  # noqa: BLE001 - `_fail` tells all
            self._fail(e)
            return None
        return guest

    def _fail(self, error: Exception) -> None:
        """End of an error; one of our own ends this program and no other."""
        if not isinstance(error, TartletError):
            log.error("program %s", self.program_id, exc_info=error)
            error = InternalError(detail=repr(error))
        self.end(error)

    def run(self) -> None:
        """Deliver what the guest waits for, if it is there, and let it compute for a slice."""
        if self.state is State.STARTING and not self._begin():
            return
        self.eager_bytes = 0
        self._backlog.next_turn()
        try:
            if self._backlog and self.state is State.RUNNING and not self.outlet.stopped and not self._wait.sleeping:
                self._work_off()
                return
            guest = self.prepare()
            if guest is None:
                return
            phase = guest.step()
        except Exception as e:  # noqa: BLE001 - `_fail` tells all
            self._fail(e)
            return
        if phase is Phase.WAITING:
            return
        if phase is Phase.READY:
            self._world.driver.again(self)
        elif phase is Phase.SLEEPING:
            self._wait.sleep(guest.sleep_us, self._slept)
        else:
            outcome = guest.outcome
            assert outcome is not None
            self.end_after_backlog(outcome.error, outcome.text)

    def end_after_backlog(self, error: TartletError | None, result: str) -> None:
        """The guest has ended by itself; what it said before comes first."""
        if self.state is not State.RUNNING:
            return
        self._outcome = (error, result)
        if not self._backlog:
            self.state = State.ENDING
            self._cancel_timers()
            self._world.driver.ended(self)

    def finish(self) -> None:
        """Clear away after the guest's own end."""
        outcome, self._outcome = self._outcome, None
        if outcome is not None:
            self._end(*outcome)

    def _work_off(self) -> None:
        self._backlog.work_off(self)
        if not self._backlog:
            if self._outcome is not None:
                self.end_after_backlog(*self._outcome)
                return
            self._hold_guest()
        self._world.driver.again(self)

    def _hold_guest(self) -> None:
        """A guest that isn't driven by `step` is held back while its output is unread, or its commands wait."""
        if self.guest is not None:
            self.guest.pause(paused=self.outlet.stopped or bool(self._backlog))

    def go_on(self) -> None:
        """Its output has been read: a guest that stood still needn't."""
        self._hold_guest()
        self._world.driver.wake(self)

    def flush_journal(self) -> None:
        """Write what the journal has pending; a program whose journal can't be written ends."""
        if self.journal is not None and self.state is not State.ENDED:
            try:
                self.journal.flush()
            except TartletError as e:
                self.end(e)

    def intake(self, count: int, records: bytes, payload: bytes) -> None:
        """Records from control, for the guest's next wait."""
        if self.state is State.RUNNING:
            self.usage.delivered(records, self._world.clock.now())
            try:
                self._inlet.intake(count, records, payload)
            except TartletError as e:
                self.end(e)

    def _slept(self) -> None:
        if self.state is State.RUNNING:
            assert self.guest is not None
            self.guest.wake()
            self._world.driver.wake(self)

    # ---- the guest's side (`guest.Host`); errors end the program ----

    def on_submit(self, data: bytes) -> None:
        """Answer what the runtime answers, queue the rest for control."""
        if self.state is not State.RUNNING:
            return
        submission = parse(data)
        if self.journal is not None:
            self.journal.digest.add(data)
        count = submission.count
        if count:
            unsent, limit = self.unsent_commands + count, self.spec.limits.commands_in_flight
            if unsent > limit:
                raise TooManyCommands(in_flight=unsent, limit=limit)
            self.unsent_commands = unsent
            self.usage.submitted(submission)
            self._world.link.commands(self, count, submission.records, submission.payload)
        if submission.local and self._backlog.take(self, submission.local, submission.local_payload):
            self._hold_guest()
            self._world.driver.wake(self)

    def on_wait(self, max_records: int, timeout_us: int) -> Delivery | None:
        """Answer with what is there; else the guest stands still until `run`."""
        if self.outlet.stopped or self._backlog:
            self._inlet.open(max_records, timeout_us)
            return None
        return self._inlet.ask(max_records, timeout_us)

    def on_sleep(self, duration_us: int) -> bool:
        """Sleeps take their time."""
        return duration_us == 0

    # ---- what the runtime answers (`local_ops.Caller`) ----

    def write(self, stream: int, data: bytes) -> None:
        """Add to stdout or stderr."""
        kind = _Event.STDERR if stream == STDERR else _Event.STDOUT
        for start in range(0, len(data), MAX_MESSAGE_BYTES):
            self._emit(kind, data[start : start + MAX_MESSAGE_BYTES])

    on_output = write  # past the SDK, as a component can

    def send(self, message: bytes) -> None:
        """Send a message to the clients."""
        if len(message) > MAX_MESSAGE_BYTES:
            raise FrameTooLarge(size=len(message), what="bytes in a message", limit=MAX_MESSAGE_BYTES)
        self._emit(_Event.MESSAGE, message)

    def receive(self, ticket: int) -> None:
        """Answer with the next message, now or when it comes."""
        self.usage.heard(self._world.clock.now())
        self._inlet.receive(ticket)

    def answer(self, row: Row, payload: bytes) -> None:
        """Answer a record that awaits it."""
        if self.state is State.RUNNING:
            self._inlet.answer(row, payload)

    def refuse(self, row: Row, error: TartletError) -> None:
        """Answer a record that awaits it with an error; one that nobody awaits ends the program."""
        if self.state is State.RUNNING:
            self._inlet.refuse(row, error)

    def refuse_later(self, row: Row, error: TartletError) -> None:
        """As `refuse`, for answers that the runtime worked on beside the loop."""
        try:
            self.refuse(row, error)
        except TartletError as e:
            self.end(e)

    def deliver_message(self, message: bytes) -> None:
        """A client's message to the program.

        Raises:
            InboxFull: it has too many unread ones.
            FrameTooLarge: it is too long.
        """
        if self._inlet.message(message):
            self.usage.heard(self._world.clock.now())

    def _emit(self, kind: int, data: bytes) -> None:
        if self.outlet.emit(LogEvent(kind, data)):
            self._hold_guest()
