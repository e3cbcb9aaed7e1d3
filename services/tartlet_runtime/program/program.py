"""One program from launch to end: its state machine, and the `Host` that its guest talks to.

    STARTING --control's answer--> RUNNING --result, error, kill--> ENDING --control has freed it--> ENDED

docs/limits.md says what happens at each bound.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tartlet_common.abi import Record
from tartlet_common.errors.registry import (
    DeadlineExceeded,
    FrameTooLarge,
    InternalError,
    JournalFull,
    Superseded,
    TartletError,
    TooManyCommands,
)
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_protos import control_pb2, programs_pb2
from tartlet_runtime.abi.guest import Delivery, Guest, Phase
from tartlet_runtime.abi.history import History
from tartlet_runtime.abi.limits import MAX_MESSAGE_BYTES
from tartlet_runtime.abi.submission import parse
from tartlet_runtime.answers.backlog import Backlog
from tartlet_runtime.answers.deferred import Deferred
from tartlet_runtime.budget.ledger import Use
from tartlet_runtime.program.facts import ProgramFacts
from tartlet_runtime.program.guest_wait import GuestWait
from tartlet_runtime.program.inbox import TIMER_DELIVERY, Inbox
from tartlet_runtime.program.mail import Mail
from tartlet_runtime.program.output import Output
from tartlet_runtime.program.output_log import LogEvent
from tartlet_runtime.program.recorder import Recorder
from tartlet_runtime.program.spans import ProgramSpan
from tartlet_runtime.program.spec import ProgramSpec, State
from tartlet_runtime.program.usage import UsageMeter
from tartlet_runtime.program.world import World
from tartlet_runtime.ties.tie import Tie

log = logging.getLogger(__name__)

_Event = programs_pb2.ProgramEvent
_SPEC_KEPT_BYTES = 4096  # of an ended program


class Program(ProgramFacts):
    """A launched program. All methods are called on the loop's thread."""

    def __init__(
        self,
        spec: ProgramSpec,
        handle: int,
        world: World[Program],
        make_guest: MakeGuest,
        asked_s: float,
        span: ProgramSpan | None = None,
    ) -> None:
        """Make a program that does nothing until `started`. A client's request for it came at `asked_s`."""
        super().__init__(spec, handle, world.clock, asked_s, span)
        memory, limits = world.memory, spec.limits
        self.inbox = Inbox(limits, memory(Use.INBOXES), self._arrived, lambda: self.usage.heard(world.clock.now()))
        self.mail = Mail(self.inbox)
        self.history = History(memory(Use.HISTORIES).fit)
        self.output = Output(spec.program_id, limits.output_bytes, memory(Use.OUTPUTS), self._output_held, self.end)
        self.tie = Tie(self.output, self.end, world.driver.loop.call_later)
        self.usage = UsageMeter(world.clock.now())
        self.wait = GuestWait(world.driver.loop)
        self.deferred = Deferred()
        self._answered = False  # by control
        self._world = world
        self.make_guest = make_guest
        self._result = ""
        self._backlog: Backlog[Program] = Backlog(world.ops.run, world.clock.now)
        self._outcome: tuple[TartletError | None, str] | None = None  # of its guest, until its backlog is empty
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def awaits_control(self) -> bool:
        """Whether control has not answered the launch."""
        return self.state is State.STARTING and not self._answered

    def started(self, error: TartletError | None, existing_program_id: str = "") -> None:
        """Take control's answer to ProgramStart, or to the announcement of a running program."""
        if self.state is not State.STARTING or isinstance(error, Superseded):
            if error is not None:
                self.end(error)
            return
        if not self._answered:
            self._answered = True
            self._world.driver.starting -= 1
            if error is None and not existing_program_id:
                self._world.on_accepted(self)
        if error is not None or existing_program_id:
            self.tell_starters(error, existing_program_id)
            self.finish(error)
            return
        self._world.driver.begin(self)

    def adopted(self, commands: int, paused_s: float) -> None:
        """No-op: only a `RecoveredProgram` is adopted."""

    def _begin(self) -> bool:
        """Make the guest in its program's first turn, so that early programs of a burst run sooner."""
        try:
            self.guest = self.make_guest(self)
        except Exception as e:  # noqa: BLE001 - `_fail` tells all
            self._fail(e)
            return False
        self.state = State.RUNNING
        if self.spec.limits.deadline_s:
            late = DeadlineExceeded(deadline_s=self.spec.limits.deadline_s)
            left_s = max(0.0, self.spec.limits.deadline_s - self._elapsed_ns() / 1e9)
            self._deadline = self._world.driver.loop.call_later(left_s, self.end, late)
        self._begun()
        return True

    def _begun(self) -> None:
        if self.recorder is not None:
            self.recorder.begin()
        self.leave(partial(self.tell_starters, None, ""))

    def record(self, recorder: Recorder) -> None:
        """Keep a journal, and hold back what leaves the program until it is stored."""
        self.recorder = recorder
        self.output.leave = recorder.leave

    def journal_lost(self, error: TartletError) -> None:
        """End, because the journal can't be stored. Nothing leaves of what isn't stored."""
        self.output.cut()
        self.tell_starters(error, "")
        if isinstance(error, Superseded):  # another copy lives: nobody is told of an end, and no journal
            self.departed = True
            assert self.recorder is not None
            self.recorder.is_broken = True
            self.end(error)
            self.finish(error)
            return
        if self.state is State.ENDING and not self.departed:
            self.error = error
            self._depart()
        self.end(error)

    def end(self, error: TartletError | None) -> None:
        """End the program, whatever it does. The first end counts. Never call this from within the guest's step."""
        if isinstance(error, Superseded) and self.recorder is not None and not self.recorder.is_broken:
            self.journal_lost(error)
        elif self.state < State.ENDING:
            self._end(error, "")
        elif self.goes_on and self.next_run is not None:  # which ends at once then
            self.next_run.error = error

    def _end(self, error: TartletError | None, result: str) -> None:
        was_starting = self.state is State.STARTING
        self.state = State.ENDING
        if error is None and len(result) > (limit := MAX_MESSAGE_BYTES // 4):
            error, result = FrameTooLarge(size=len(result), what="characters in the result", limit=limit), ""
        self.error, self._result = error, result
        self._cancel_timers()
        self.deferred.clear()
        self.web.close()
        self.children.close()
        if self.guest is not None:
            self.guest.close(error)
        if was_starting:
            if not self._answered:
                self._world.driver.starting -= 1
            self.tell_starters(error, "")
        if self.recorder is not None and (self.accepted or not was_starting) and not self.goes_on:
            self.recorder.record_end(self._elapsed_ns(), error, result)
        self.leave(self._depart)

    def _depart(self) -> None:
        if self.departed:
            return
        self.departed = True
        if not self._world.link.ended(self, failed=self.error is not None):
            self.finish(self.error)

    def settled(self, settled: control_pb2.ProgramSettled) -> None:
        """Finish, since control has freed what the program held. A queue left poisoned makes the program fail."""
        if self.state is State.ENDING and self.departed:
            self.usage.settled(settled)
            self.finish(self.error or error_from_proto(settled.poisoned))

    def finish(self, error: TartletError | None) -> None:
        """End at last: control has freed what the program held, or nobody will say so."""
        self.state, self.error = State.ENDED, error
        self._backlog.clear()
        if not self.goes_on:
            self.usage.ended_s, spec = (now := self._world.clock.now()), self.spec
            data = self._result.encode("utf-8", "replace") if error is None else b""
            self.output.close(LogEvent(_Event.ENDED, data, error is None, error, self.usage.to_proto(now)))
            if len(spec.source) + sum(map(len, spec.args)) > _SPEC_KEPT_BYTES:
                self.spec = replace(spec, source=b"", args=())
            self.tie.close()
        self._world.on_ended(self)
        self.inbox.close()
        self.history.close()
        self.guest = None

    def _cancel_timers(self) -> None:
        self.wait.cancel()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def prepare(self) -> Guest | None:
        """Deliver what the guest waits for, if it has come. Returns the guest if `run` will let it compute."""
        if self.state is not State.RUNNING or self.output.stopped or self.wait.sleeping or self._backlog:
            return None
        guest = self.guest
        assert guest is not None
        if self.wait.max_records is None:
            return guest
        try:
            delivery = self._next_delivery()
            if delivery is None:
                return None
            guest.deliver(delivery)
        except Exception as e:  # noqa: BLE001 - `_fail` tells all
            self._fail(e)
            return None
        return guest

    def _fail(self, error: Exception) -> None:
        """End with an error. An error of the runtime's own becomes InternalError and ends no other program."""
        if not isinstance(error, TartletError):
            log.error("program %s", self.program_id, exc_info=error)
            error = InternalError(detail=repr(error))
        self.end(error)

    def run(self) -> None:
        """Deliver what the guest waits for, if it has come, and let the guest compute for a slice."""
        if self.state is State.STARTING and not self._begin():
            return
        self.eager_bytes = 0
        self._backlog.next_turn()
        try:
            if self._backlog and self.state is State.RUNNING and not self.output.stopped and not self.wait.sleeping:
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
            self.wait.sleep(guest.sleep_us, self._slept)
        else:
            outcome = guest.outcome
            assert outcome is not None
            self.end_after_backlog(outcome.error, outcome.text)

    def end_after_backlog(self, error: TartletError | None, result: str) -> None:
        """End as the guest has ended by itself, once its earlier commands have been answered."""
        if self.state is not State.RUNNING:
            return
        if self._backlog:
            self._outcome = (error, result)
        else:
            self._end(error, result)

    def _work_off(self) -> None:
        self._backlog.work_off(self)
        if not self._backlog:
            if self._outcome is not None:
                self.end_after_backlog(*self._outcome)
                return
            self._hold_guest()
        self._world.driver.again(self)

    def _hold_guest(self) -> None:
        """Hold back a guest with a process of its own while its output is unread or its commands wait."""
        if self.guest is not None:
            self.guest.pause(paused=self.output.stopped or bool(self._backlog))

    def _output_held(self) -> None:
        self._hold_guest()
        if not self.output.stopped:
            self._world.driver.wake(self)

    def intake(self, count: int, records: bytes, payload: bytes) -> None:
        """Take records from control for the guest's next wait."""
        self.history.told(records, payload)
        if self.state is State.RUNNING:
            self.usage.delivered(records, self._world.clock.now())
            try:
                self.inbox.add(count, records, payload, from_control=True)
            except TartletError as e:
                self.end(e)

    def hear(self, message: bytes, key: bytes, taken: Callable[[], None]) -> None:
        """Take a client's message, and call `taken` once it is stored. Raises what `Mail.take` does."""
        try:
            self.mail.take(message, key, self.recorder, self._elapsed_ns())
        except JournalFull as e:
            self.end(e)
            raise
        if self.recorder is None:
            taken()
        else:
            self.recorder.leave_now(taken)
            self._world.driver.schedule()

    def _arrived(self) -> None:
        if self.wait.max_records is not None:
            self._world.driver.wake(self)

    def _next_delivery(self) -> Delivery | None:
        """Close the open wait and return what ends it, or None if nothing does yet."""
        wait = self.wait
        if self.recorder is not None and self.recorder.starves:
            return None
        if self.inbox.count and wait.max_records is not None:
            delivery = self._journaled(self.inbox.take(wait.max_records))
        elif wait.timed_out:
            delivery = self._journaled(TIMER_DELIVERY)
        else:
            return None
        wait.close()
        return delivery

    def _journaled(self, data: bytes) -> Delivery:
        elapsed_ns = self._elapsed_ns()
        if self.recorder is not None:
            self.recorder.record(elapsed_ns, data, self.inbox.from_control, self.output.log.read_to)
        return Delivery(data, self.clock_start_ns + elapsed_ns)

    def _elapsed_ns(self) -> int:
        """Return the guest's time since its start; a stepped wall clock has no effect."""
        return int((self._world.clock.now() - self.usage.launched_s) * 1e9)

    def _slept(self) -> None:
        if self.state is State.RUNNING:
            assert self.guest is not None
            self.guest.wake()
            self._world.driver.wake(self)

    # ---- the guest's side (`guest.Host`); errors end the program ----

    def on_submit(self, data: bytes) -> None:
        """Answer the commands that the runtime answers, and queue the others for control."""
        if self.state is not State.RUNNING:
            return
        submission = parse(data)
        if self.recorder is not None:
            self.recorder.journal.digest.add(data)
        if submission.count:
            self.usage.submitted(submission)
            self._command(submission.count, submission.records, submission.payload)
        if submission.local:
            self._work(submission.local, submission.local_payload)

    def _command(self, count: int, records: bytes, payload: bytes) -> None:
        unsent, limit = self.unsent_commands + count, self.spec.limits.commands_in_flight
        if unsent > limit:
            raise TooManyCommands(in_flight=unsent, limit=limit)
        self.unsent_commands = unsent
        self.leave(partial(self._world.link.commands, self, count, records, payload))

    def _work(self, rows: list[Record], payload: bytes) -> None:
        if self._backlog.take(self, rows, payload):
            self._hold_guest()
            self._world.driver.wake(self)

    def on_wait(self, max_records: int, timeout_us: int) -> Delivery | None:
        """Return what has come, or None: then the guest stands still until `run` delivers."""
        starves = self.recorder is not None and self.recorder.starves
        if not (self.output.stopped or self._backlog or starves):
            if self.inbox.count:
                return self._journaled(self.inbox.take(max_records))
            if timeout_us == 0:
                return self._journaled(TIMER_DELIVERY)
        self.wait.open(max_records, timeout_us, lambda: self._world.driver.wake(self))
        return None

    def on_sleep(self, duration_us: int) -> bool:
        """Return whether the sleep is over at once."""
        return duration_us == 0

    def on_output(self, stream: int, data: bytes) -> None:
        """Take output that a component writes without the SDK."""
        self.output.write(stream, data)


MakeGuest = Callable[[Program], Guest]
