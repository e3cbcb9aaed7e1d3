"""What one program is told: what has come for it, its wait for that, and the journal each delivery goes through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tartlet_common.errors.registry import TartletError
from tartlet_runtime.abi.guest import Delivery
from tartlet_runtime.abi.submission import Row
from tartlet_runtime.program.guest_wait import GuestWait
from tartlet_runtime.program.inbox import TIMER_DELIVERY
from tartlet_runtime.program.mailbox import Mailbox

if TYPE_CHECKING:
    from tartlet_runtime.program.program import Program
    from tartlet_runtime.program.spec import World


class Inlet:
    """The mailbox, made for what first comes, and the guest's wait or sleep. What comes wakes a program that waits."""

    __slots__ = ("_made", "_program", "_world", "clock_start_ns", "wait")

    def __init__(self, program: Program, world: World) -> None:
        self.wait = GuestWait(world.driver.loop)
        self.clock_start_ns = world.clock.unix_ns()
        self._made: Mailbox | None = None  # most of those launched at once never get anything
        self._program = program
        self._world = world

    @property
    def _mail(self) -> Mailbox:
        if self._made is None:
            self._made = Mailbox(self._program.spec.limits)
        return self._made

    # ---- what comes ----

    def intake(self, count: int, records: bytes, payload: bytes) -> None:
        """Records from control. Errors: the mailbox's, as of all that comes."""
        self._mail.intake(count, records, payload)
        self._wake()

    def receive(self, ticket: int) -> None:
        """The next message, now or when it comes, answers this ticket."""
        self._mail.receive(ticket)

    def answer(self, row: Row, payload: bytes) -> None:
        """An answer to a record that awaits it."""
        if self._mail.answer(row, payload):
            self._wake()

    def refuse(self, row: Row, error: TartletError) -> None:
        """An error for a record that awaits its answer; another one's is raised."""
        self._mail.refuse(row, error)
        self._wake()

    def message(self, message: bytes) -> bool:
        """A client's message; whether the program gets it at its next wait."""
        taken = self._mail.deliver(message)
        if taken:
            self._wake()
        return taken

    def close(self) -> None:
        """The program has ended: nothing comes any more, and it isn't held by what it holds."""
        self._made = None
        del self._program, self._world

    def _wake(self) -> None:
        if self.wait.max_records is not None:
            self._world.driver.wake(self._program)

    # ---- what the guest takes ----

    @property
    def _has_mail(self) -> bool:
        return self._made is not None and self._made.inbox.count > 0

    def ask(self, max_records: int, timeout_us: int) -> Delivery | None:
        """The guest waits: what is there; else its wait is open until `offer`."""
        if self._has_mail:
            return self._deliver(self._mail.inbox.take(max_records))
        if timeout_us == 0:
            return self._deliver(TIMER_DELIVERY)
        self.open(max_records, timeout_us)
        return None

    def open(self, max_records: int, timeout_us: int) -> None:
        """The guest waits, and gets nothing before its next turn."""
        self.wait.open(max_records, timeout_us, lambda: self._world.driver.wake(self._program))

    def offer(self) -> Delivery | None:
        """What ends the open wait, if it is there."""
        wait = self.wait
        if self._has_mail and wait.max_records is not None:
            delivery = self._deliver(self._mail.inbox.take(wait.max_records))
        elif wait.timed_out:
            delivery = self._deliver(TIMER_DELIVERY)
        else:
            return None
        wait.close()
        return delivery

    def _deliver(self, data: bytes) -> Delivery:
        """Journaled first."""
        program, world = self._program, self._world
        elapsed_ns = int((world.clock.now() - program.usage.launched_s) * 1e9)  # a stepped wall clock has no effect
        if program.journal is not None:
            program.journal.append(elapsed_ns, data)
            world.driver.journal(program)
        return Delivery(data, self.clock_start_ns + elapsed_ns)
