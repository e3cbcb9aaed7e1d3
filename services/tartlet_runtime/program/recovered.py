"""A program that begins again from its journal, because the runtime that ran it is gone, and then goes on live.

Its guest is told what it was told before, at the same times, and so asks for the same. The first commands are dropped,
as many as control has taken. The runtime's own answers that the guest had are not worked out again. Output is put out
again, with the same offsets.
"""

from __future__ import annotations

from functools import partial

from tartlet_common.abi import RECORD_BYTES, Record
from tartlet_common.errors.registry import Diverged, NotForkable, TartletError
from tartlet_common.pauses import Pause
from tartlet_protos import control_pb2
from tartlet_runtime.abi.guest import FOREVER_US, Delivery
from tartlet_runtime.abi.submission import parse
from tartlet_runtime.program.program import MakeGuest, Program
from tartlet_runtime.program.recorder import Recorder
from tartlet_runtime.program.rerun import CHILD_OPS, Rerun, rows_of
from tartlet_runtime.program.spans import ProgramSpan
from tartlet_runtime.program.spec import ProgramSpec, State
from tartlet_runtime.program.world import World


class RecoveredProgram(Program):
    """A program whose past is in a journal. It waits for control's word first, as other programs do."""

    adopts = True

    def __init__(
        self,
        spec: ProgramSpec,
        handle: int,
        world: World[Program],
        make_guest: MakeGuest,
        start_ns: int,
        rerun: Rerun,
        span: ProgramSpan | None = None,
        *,
        whole: bool = False,
    ) -> None:
        """Begin with the past that `rerun` tells.

        Args:
            spec: what was launched.
            handle: its number on the link with control.
            world: the parts of the runtime that it uses.
            make_guest: makes its guest.
            start_ns: the guest's time at its start, nanoseconds since the epoch. It goes on from the later of the last
                record and the wall clock.
            rerun: its past.
            span: its span, if traces are exported.
            whole: control knows nothing of it, and gets its history instead of the commands of its past.

        Raises:
            MemoryBudgetExceeded: the process has no memory for messages that were not taken.
        """
        super().__init__(spec, handle, world, make_guest, world.clock.now(), span)
        self.clock_start_ns, self.lag_ns = start_ns, rerun.lag_ns
        elapsed_ns = max(rerun.clock_ns, world.clock.unix_ns() - start_ns - rerun.lag_ns)
        self.usage.launched_s = self.made_s - elapsed_ns / 1e9
        self.accepted = True
        self.inbox.restore(rerun.messages, rerun.heard)
        self.mail.restore(rerun.keys)
        self.output.begin_again(rerun.read_to)
        self.heard = rerun.heard
        """How many of control's records its journal has."""
        self.history.begin_again([record.delivery for record in rerun.deliveries], rerun.heard)
        self._rerun = rerun
        self._is_past = True  # the guest doesn't live yet
        self.is_whole = whole
        self._skip = 0  # commands that control has taken
        self._early: list[bytes] = []  # control's records that came meanwhile
        self._slept_us = 0  # since the last delivery of the past
        self._settlement: control_pb2.ProgramSettled | None = None

    @property
    def is_recovering(self) -> bool:
        """Whether the guest is still told its past, or hasn't given again all that control had taken."""
        return (self._is_past or self._skip > 0) and self.state < State.ENDING

    def adopted(self, commands: int, paused_s: float) -> None:
        """Take control's word: it has taken so many commands, and the program stood still for so long.

        Control tells of all pauses besides, this one among them.
        """
        self._skip = commands
        self.has_engine_state = commands > 0
        if self.span is not None:
            self.span.recovering(Pause("runtime", paused_s))

    def record(self, recorder: Recorder) -> None:
        """Go on with its journal. Control takes a word of what is stored for a sign that the guest lives."""
        super().record(recorder)
        recorder.is_past = self._is_past

    # ---- its past -------------------------------------------------------------------------------------------------

    def intake(self, count: int, records: bytes, payload: bytes) -> None:
        """Take records from control, which may come before the guest begins."""
        if not self._is_past:
            super().intake(count, records, payload)
        elif self.state < State.ENDING:
            self.history.told(records, payload)
            self._early.append(records)
            try:
                self.inbox.add(count, records, payload, from_control=True)
            except TartletError as e:
                self.end(e)

    def on_submit(self, data: bytes) -> None:
        """Take commands of which the first ones were taken before."""
        if self.state is not State.RUNNING or not (self._is_past or self._skip):
            super().on_submit(data)
            return
        submission = parse(data)
        if self.recorder is not None:
            self.recorder.journal.digest.add(data)
        self.usage.submitted(submission)
        known = submission.count if self.is_whole else min(self._skip, submission.count)
        self._skip = max(0, self._skip - known)
        if known:
            self.history.sent(submission.records[: known * RECORD_BYTES], submission.payload)
        if submission.count > known:
            self._command(submission.count - known, submission.records[known * RECORD_BYTES :], submission.payload)
        fetched = partial(self._remember, submission.local_payload)
        local, received = self._rerun.left_of(submission.local, fetched)
        self.inbox.skip_messages(received)
        if local:
            self._work(local, submission.local_payload)

    def _remember(self, payloads: bytes, record: Record, a: int, b: int, answer: bytes) -> None:
        what = self.children if record.op in CHILD_OPS else self.web
        what.remember(payloads, record, a, b, answer)

    def on_wait(self, max_records: int, timeout_us: int) -> Delivery | None:
        """Answer from the past, as long as there is one."""
        if not self._is_past:
            return super().on_wait(max_records, timeout_us)
        if not (self._backlog or self.output.stopped):
            delivery = self._remembered()
            if delivery is not None:
                return delivery
            if self._rerun.end is None:
                self._live(waits=True)
                if 0 < timeout_us < FOREVER_US:  # the wait had begun before
                    late_us = (self._elapsed_ns() - self._rerun.waited_ns) // 1000
                    timeout_us = max(1, timeout_us - late_us)
                return super().on_wait(max_records, timeout_us)
        self.wait.open(max_records, timeout_us, partial(self._world.driver.wake, self))
        self._world.driver.wake(self)
        return None

    def _next_delivery(self) -> Delivery | None:
        if self._is_past:
            delivery = self._remembered()
            if delivery is not None:
                self.wait.close()
                return delivery
            if self._rerun.end is not None:
                self._end(*self._rerun.end)
                return None
            self._live(waits=True)
        return super()._next_delivery()

    def _remembered(self) -> Delivery | None:
        """Return the next delivery of the past.

        Raises:
            Diverged: the guest's commands aren't those that it gave then.
        """
        rerun = self._rerun
        if not rerun.deliveries:
            return None
        record = rerun.deliveries.popleft()
        if not self._matches(record.digest):
            raise Diverged(wait=0, detail="run again, the program's commands are not those that it gave before")
        self.usage.delivered(rows_of(record.delivery), self.usage.launched_s + record.clock_ns / 1e9)
        return Delivery(record.delivery, self.clock_start_ns + record.clock_ns)

    def _matches(self, digest: bytes) -> bool:
        assert self.recorder is not None
        return digest == self.recorder.journal.digest.value()

    def _live(self, *, waits: bool) -> None:
        """Go on live: the guest knows all that its journal has."""
        if waits and self._skip:
            raise Diverged(wait=0, detail=f"control had {self._skip} commands more than the program gives now")
        self._is_past = False
        self._tell_history()
        if self.recorder is not None:
            self.recorder.is_past = False
            self.recorder.acknowledge(self.heard)
        self._world.ops.resume(self)
        self.output.caught_up()
        now_s = self._world.clock.now()
        for records in self._early:
            self.usage.delivered(records, now_s)
        self._early.clear()

    def _tell_history(self) -> None:
        """Give control all that the program has sent and was told, if control knows nothing of that."""
        if self.is_whole:
            self.is_whole = False
            self.has_engine_state = bool(self.history)
            self._world.link.remember(self)

    def on_sleep(self, duration_us: int) -> bool:
        """Let sleeps of the past be over at once, as far as their time has passed."""
        rerun = self._rerun
        if rerun.deliveries or rerun.end is not None:
            return True
        late_us = (self._elapsed_ns() - rerun.waited_ns) // 1000
        if self._is_past and late_us - self._slept_us >= duration_us:
            self._slept_us += duration_us
            return True
        if self._is_past:
            self._live(waits=False)
        return super().on_sleep(duration_us)

    # ---- its end --------------------------------------------------------------------------------------------------

    def end_after_backlog(self, error: TartletError | None, result: str) -> None:
        """End as the guest has ended, which must not be before its past is over."""
        if self._rerun.deliveries and not isinstance(error, Diverged | NotForkable):
            error = Diverged(wait=0, detail="run again, the program ended before it had all that it was told")
        super().end_after_backlog(error, result)

    def _end(self, error: TartletError | None, result: str) -> None:
        if self._rerun.end is not None:
            error, result = self._rerun.end
        self._is_past = False
        if error is None:
            self._tell_history()
        self.output.caught_up()
        super()._end(error, result)

    def _depart(self) -> None:
        if self._settlement is None:
            super()._depart()
        elif not self.departed:
            self.departed = True
            super().settled(self._settlement)

    def settled(self, settled: control_pb2.ProgramSettled) -> None:
        """Finish, or remember that control had freed all before this copy of the program began."""
        if self.departed:
            super().settled(settled)
        else:
            self._settlement = settled
