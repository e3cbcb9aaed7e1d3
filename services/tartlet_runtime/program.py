"""One program from launch to end: its state machine, and the `Host` that its guest talks to.

    STARTING --control's answer--> RUNNING --result, error, kill--> ENDING --control has freed it--> ENDED

What happens when something of it is full (docs/limits.md):

- Unread output reaches `output_bytes`: with a client attached the program stands still at its next wait or slice until
  that client has caught up to half; with none attached, or four times over the bound within a slice, it ends in
  OutputTooLarge. Nothing is dropped.
- Its inbox holds `inbox_messages` unread messages, or 64 MiB of them: the sender gets InboxFull, the program notices
  nothing. Untaken answers of the runtime are bounded alike: the program ends in ResourceQuotaExceeded.
- A submission brings more than `ROWS_A_TURN` commands for the runtime: they are worked on over several turns, and
  the program stands still meanwhile.
- More than `commands_in_flight` commands since the last flush: it ends in TooManyCommands (control counts the rest).
- Its journal reaches `journal_bytes`: it ends in JournalFull, unless launched with durable=False.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Protocol

from tartlet_common.abi import Flag
from tartlet_common.clock import Clock
from tartlet_common.errors import (
    ControlLost,
    DeadlineExceeded,
    FrameTooLarge,
    InboxFull,
    InternalError,
    OutputTooLarge,
    ResourceQuotaExceeded,
    TartletError,
    TooManyCommands,
)
from tartlet_common.wire import error_from_proto, error_to_proto
from tartlet_protos import control_pb2, programs_pb2
from tartlet_runtime.driver import Driver
from tartlet_runtime.guest import FOREVER_US, STDERR, Delivery, Guest, Phase
from tartlet_runtime.inbox import TIMER_DELIVERY, Inbox
from tartlet_runtime.journal import Journal
from tartlet_runtime.limits import MAX_INBOX_BYTES, MAX_MESSAGE_BYTES, ProgramLimits
from tartlet_runtime.local_ops import LocalOps
from tartlet_runtime.output_log import LogEvent, OutputLog
from tartlet_runtime.spans import ProgramSpan
from tartlet_runtime.submission import Row, parse
from tartlet_runtime.usage import UsageMeter

log = logging.getLogger(__name__)

_Event = programs_pb2.ProgramEvent
_AWAIT = int(Flag.AWAIT)
_SOURCE_KEPT_BYTES = 4096  # of an ended program
_HARD_OUTPUT_FACTOR = 4
_HARD_INBOX_FACTOR = 2  # answers from the runtime come on top of those of control's commands in flight
_MAX_TRACEBACK_CHARS = 64 << 10
ROWS_A_TURN = 1024
"""Commands that the runtime answers for one program in one turn, so that the others get theirs."""


class State(IntEnum):
    """Where a program stands."""

    STARTING = 0  # control hasn't answered yet
    RUNNING = 1
    ENDING = 2  # its code is gone; control frees what it held
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
    tenant: str
    idempotency_key: str
    limits: ProgramLimits
    durable: bool
    seed: bytes
    trace: Mapping[str, str] = field(default_factory=dict)


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


class Program:
    """A launched program. All methods are called on the loop's thread."""

    def __init__(
        self,
        spec: ProgramSpec,
        handle: int,
        world: World,
        make_guest: MakeGuest,
        span: ProgramSpan | None = None,
    ) -> None:
        """It does nothing until `started`."""
        self.spec = spec
        self.program_id = spec.program_id
        self.args = spec.args
        self.model = spec.model
        self.handle = handle
        self.span = span
        self.state = State.STARTING
        self.error: TartletError | None = None
        self.log = OutputLog(spec.limits.output_bytes)
        self.usage = UsageMeter(world.clock.now())
        self.has_engine_state = False  # commands of it were sent to control
        self.queued = False  # in the driver's deque
        self.journal: Journal | None = None  # None: not durable
        self.accepted = False  # its launch was answered so
        self.starters: list[Callable[[TartletError | None, str], None]] = []
        self.unsent_commands = 0
        self.kept_bytes = 0  # of output, once it has ended
        self.guest: Guest | None = None
        self._world = world
        self._make_guest = make_guest
        self._result = ""
        self._inbox = Inbox()
        self._messages: deque[bytes] = deque()
        self._receives: deque[int] = deque()
        self._readers: list[ReaderCall] = []
        self._waiting: int | None = None  # max records of the guest's open wait
        self._timed_out = False
        self._stopped = False  # output goes unread
        self._sleeping = False
        self._backlog: deque[tuple[list[Row], bytes]] = deque()  # for the runtime, in turns to come
        self._outcome: tuple[TartletError | None, str] | None = None  # ended, once the backlog is done
        self._message_bytes = 0
        self.deferred = 0
        self.eager_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._clock_start_ns = world.clock.unix_ns()

    # ---- life ----

    @property
    def is_waiting(self) -> bool:
        """Whether its guest stands in a wait."""
        return self._waiting is not None

    @property
    def clock_start_ns(self) -> int:
        """The guest's time at its start, nanoseconds since the epoch."""
        return self._clock_start_ns

    @property
    def state_name(self) -> str:
        """As `ProgramInfo.state` has it."""
        if self.state is State.ENDED:
            return "failed" if self.error else "succeeded"
        return "starting" if self.state is State.STARTING else "running"

    def started(self, error: TartletError | None, existing_program_id: str = "") -> None:
        """Control's answer to ProgramStart (or to an announcement of a running program)."""
        if self.state is not State.STARTING:
            if error is not None:
                self.end(error)
            return
        if error is not None or existing_program_id:
            self._tell_starters(error, existing_program_id)
            self._finish(error)
            return
        try:
            self.guest = self._make_guest(self)
        except TartletError as e:
            self._tell_starters(e, "")
            self.end(e)
            return
        self.state = State.RUNNING
        if self.spec.limits.deadline_s:
            self._deadline = self._world.driver.loop.call_later(self.spec.limits.deadline_s, self._past_deadline)
        if self.journal is not None:
            self._world.driver.journal(self)
        self._tell_starters(None, "")
        self._world.driver.wake(self)

    def end(self, error: TartletError | None, result: str = "") -> None:
        """End the program, whatever it does; the first end counts. Not to be called from within its guest's step."""
        if self.state >= State.ENDING:
            return
        was_starting = self.state is State.STARTING
        self.state = State.ENDING
        if error is None and len(result) > MAX_MESSAGE_BYTES // 4:
            error, result = FrameTooLarge(size=len(result), limit=MAX_MESSAGE_BYTES // 4), ""
        self.error, self._result = error, result
        self._cancel_timers()
        if self.guest is not None:
            self.guest.close(error)
        if was_starting:
            self._tell_starters(error, "")
        if not self._world.link.ended(self, failed=error is not None):
            self._finish(error)

    def settled(self, settled: control_pb2.ProgramSettled) -> None:
        """Control has freed everything it held; a queue left poisoned is its failure (contract 4)."""
        if self.state is State.ENDING:
            self.usage.settled(settled)
            self._finish(self.error or error_from_proto(settled.poisoned))

    def _tell_starters(self, error: TartletError | None, existing_program_id: str) -> None:
        starters, self.starters = self.starters, []
        for answer in starters:
            answer(error, existing_program_id)

    def info(self, now_s: float, unix_s: float, runtime: str) -> programs_pb2.ProgramInfo:
        """What List says of it."""
        age_s = now_s - self.usage.launched_s
        return programs_pb2.ProgramInfo(
            program_id=self.program_id,
            name=self.spec.name,
            state=self.state_name,
            tenant=self.spec.tenant,
            started_unix_s=unix_s - age_s,
            age_s=age_s,
            usage=self.usage.to_proto(now_s),
            error=error_to_proto(self.error),
            model=self.model,
            runtime=runtime,
        )

    def control_lost(self) -> None:
        """The stream to control broke: what the program had on engines is gone."""
        if self.state is State.ENDING:
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
        self.log.append(LogEvent(_Event.ENDED, data, error is None, error, usage))
        self._tell_readers()
        self._inbox, self._messages, self._receives, self._backlog = Inbox(), deque(), deque(), deque()
        if len(self.spec.source) > _SOURCE_KEPT_BYTES:
            self.spec = replace(self.spec, source=b"")
        self._world.on_ended(self)
        self.guest = None

    def _past_deadline(self) -> None:
        self.end(DeadlineExceeded(deadline_s=self.spec.limits.deadline_s))

    def _cancel_timers(self) -> None:
        for timer in (self._timer, self._deadline):
            if timer is not None:
                timer.cancel()
        self._timer = self._deadline = None

    # ---- the driver's side ----

    def run(self) -> None:
        """Deliver what the guest waits for, if it is there, and let it compute for a slice."""
        if self.state is not State.RUNNING or self._stopped or self._sleeping:
            return
        guest = self.guest
        assert guest is not None
        self.eager_bytes = 0
        try:
            if self._backlog:
                self._work_off()
                return
            if self._waiting is not None:
                if self._inbox.count:
                    delivery = self._take(self._waiting)
                elif self._timed_out:
                    delivery = self._deliver(TIMER_DELIVERY)
                else:
                    return
                self._close_wait()
                guest.deliver(delivery)
            phase = guest.step()
        except TartletError as e:
            self.end(e)
            return
        except Exception as e:  # our own bug: this program ends of it, no other
            log.exception("program %s", self.program_id)
            self.end(InternalError(detail=repr(e)))
            return
        if phase is Phase.WAITING:
            return
        if phase is Phase.READY:
            self._world.driver.again(self)
        elif phase is Phase.SLEEPING:
            self._sleeping = True
            self._timer = self._world.driver.loop.call_later(guest.sleep_us / 1e6, self._slept)
        else:
            outcome = guest.outcome
            assert outcome is not None
            self.end_after_backlog(outcome.error, outcome.text)

    def end_after_backlog(self, error: TartletError | None, result: str) -> None:
        """The guest has ended by itself; what it said before comes first."""
        if self._backlog:
            self._outcome = (error, result)
        else:
            self.end(error, result)

    def _work_off(self) -> None:
        rows, payload = self._backlog.popleft()
        if len(rows) > ROWS_A_TURN:
            self._backlog.appendleft((rows[ROWS_A_TURN:], payload))
            rows = rows[:ROWS_A_TURN]
        for row in rows:
            self._world.ops.run(self, row, payload)
        if not self._backlog:
            if self._outcome is not None:
                self.end(*self._outcome)
                return
            self._hold_guest()
        self._world.driver.again(self)

    def _hold_guest(self) -> None:
        """A guest that isn't driven by `step` is held back while its output is unread, or its commands wait."""
        if self.guest is not None:
            self.guest.pause(paused=self._stopped or bool(self._backlog))

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
            self._inbox.add(count, records, payload)
            if self._waiting is not None:
                self._world.driver.wake(self)

    def _slept(self) -> None:
        self._timer = None
        self._sleeping = False
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
            self.unsent_commands += count
            limit = self.spec.limits.commands_in_flight
            if self.unsent_commands > limit:
                raise TooManyCommands(in_flight=self.unsent_commands, limit=limit)
            self.usage.submitted(count, submission.samples)
            self._world.link.commands(self, count, submission.records, submission.payload)
        local = submission.local
        if self._backlog or len(local) > ROWS_A_TURN:
            self._backlog.append((local, submission.local_payload))
            self._hold_guest()
            self._world.driver.wake(self)
            return
        run = self._world.ops.run
        for row in local:
            run(self, row, submission.local_payload)

    def on_output(self, stream: int, data: bytes) -> None:
        """Bytes that the guest wrote to stdout or stderr past the SDK."""
        self.write(stream, data)

    def on_wait(self, max_records: int, timeout_us: int) -> Delivery | None:
        """Answer with what is there; else the guest stands still until `run`."""
        if not self._stopped and not self._backlog:
            if self._inbox.count:
                return self._take(max_records)
            if timeout_us == 0:
                return self._deliver(TIMER_DELIVERY)
        self._waiting = max_records
        if timeout_us != FOREVER_US:
            # a year is as good as the 500,000 that fit the field, and a float of seconds still counts it exactly
            seconds = min(timeout_us / 1e6, 31_536_000.0)
            self._timer = self._world.driver.loop.call_later(seconds, self._wait_over)
        return None

    def on_sleep(self, duration_us: int) -> bool:
        """Sleeps take their time."""
        return duration_us == 0

    def _wait_over(self) -> None:
        self._timer = None
        self._timed_out = True
        self._world.driver.wake(self)

    def _close_wait(self) -> None:
        self._waiting = None
        self._timed_out = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _take(self, max_records: int) -> Delivery:
        return self._deliver(self._inbox.take(max_records))

    def _deliver(self, data: bytes) -> Delivery:
        """What the guest is told now: journaled first."""
        elapsed_ns = int((self._world.clock.now() - self.usage.launched_s) * 1e9)  # a stepped wall clock has no effect
        if self.journal is not None:
            self.journal.append(elapsed_ns, data)
            self._world.driver.journal(self)
        return Delivery(data, self._clock_start_ns + elapsed_ns)

    # ---- what the runtime answers (`local_ops.Caller`) ----

    def write(self, stream: int, data: bytes) -> None:
        """Add to stdout or stderr."""
        kind = _Event.STDERR if stream == STDERR else _Event.STDOUT
        for start in range(0, len(data), MAX_MESSAGE_BYTES):
            self._emit(kind, data[start : start + MAX_MESSAGE_BYTES])

    def send(self, message: bytes) -> None:
        """Send a message to the clients."""
        if len(message) > MAX_MESSAGE_BYTES:
            raise FrameTooLarge(size=len(message), limit=MAX_MESSAGE_BYTES)
        self._emit(_Event.MESSAGE, message)

    def receive(self, ticket: int) -> None:
        """Answer with the next message, now or when it comes."""
        if self._messages:
            message = self._messages.popleft()
            self._message_bytes -= len(message)
            self._inbox.result(ticket, message)
        elif len(self._receives) >= self.spec.limits.commands_in_flight:
            raise TooManyCommands(in_flight=len(self._receives), limit=self.spec.limits.commands_in_flight)
        else:
            self._receives.append(ticket)

    def answer(self, row: Row, payload: bytes) -> None:
        """Answer a record that awaits it."""
        if row[1] & _AWAIT and self.state is State.RUNNING:
            inbox, limits = self._inbox, self.spec.limits
            inbox.result(row[2], payload)
            if inbox.payload_bytes > MAX_INBOX_BYTES:
                held, kind = inbox.payload_bytes - len(payload), "bytes of answers that it has not taken"
                raise ResourceQuotaExceeded(held=held, kind=kind, asked=len(payload), limit=MAX_INBOX_BYTES)
            if inbox.count > _HARD_INBOX_FACTOR * limits.commands_in_flight:
                raise TooManyCommands(in_flight=inbox.count, limit=limits.commands_in_flight)
            if self._waiting is not None:
                self._world.driver.wake(self)

    def refuse(self, row: Row, error: TartletError) -> None:
        """Answer a record that awaits it with an error; one that nobody awaits ends the program."""
        if self.state is not State.RUNNING:
            return
        if not row[1] & _AWAIT:
            raise error
        self._inbox.failure(row[2], row[3], error)
        if self._waiting is not None:
            self._world.driver.wake(self)

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
        if len(message) > MAX_MESSAGE_BYTES:
            raise FrameTooLarge(size=len(message), limit=MAX_MESSAGE_BYTES)
        if self._receives:
            self._inbox.result(self._receives.popleft(), message)
            if self._waiting is not None:
                self._world.driver.wake(self)
            return
        limit = self.spec.limits.inbox_messages
        if len(self._messages) >= limit or self._message_bytes + len(message) > MAX_INBOX_BYTES:
            raise InboxFull(pending=len(self._messages), limit=limit)
        self._messages.append(message)
        self._message_bytes += len(message)

    # ---- output ----

    def attach(self, reader: ReaderCall) -> None:
        """A client reads from now on."""
        self._readers.append(reader)

    def detach(self, reader: ReaderCall) -> None:
        """A client has gone; what it left unread may be too much for a program that nobody reads."""
        self._readers.remove(reader)
        if self._stopped and not self._readers:
            self.end(OutputTooLarge(limit=self.log.limit_bytes))

    def read_to(self, offset: int) -> None:
        """A client has got the events before `offset`."""
        self.log.mark_read(offset)
        if self._stopped and self.log.unread_bytes <= self.log.limit_bytes // 2:
            self._stopped = False
            self._hold_guest()
            self._world.driver.wake(self)

    def _emit(self, kind: int, data: bytes) -> None:
        self.log.append(LogEvent(kind, data))
        self._tell_readers()
        unread, limit = self.log.unread_bytes, self.log.limit_bytes
        if unread > limit:
            if not self._readers or unread > limit * _HARD_OUTPUT_FACTOR:
                raise OutputTooLarge(limit=limit)
            if not self._stopped:
                self._stopped = True
                self._hold_guest()

    def _tell_readers(self) -> None:
        for reader in self._readers:
            reader.mark(self)


def clip_traceback(text: str) -> str:
    """The end of a traceback, which names the cause; endless ones are cut."""
    if len(text) <= _MAX_TRACEBACK_CHARS:
        return text
    return f"... {len(text) - _MAX_TRACEBACK_CHARS} characters left out\n{text[-_MAX_TRACEBACK_CHARS:]}"
