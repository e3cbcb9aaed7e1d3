"""The only place where guests compute: programs take fair turns on the event loop, and results leave after each turn.

A turn steps three groups of programs, round robin within each group and for a few milliseconds: programs that were
woken, programs that are new, and programs that only ran out of their slice. Then the turn flushes what the steps
brought about, in the order that journals need: journals first, then commands to control, then events to clients.
No program has a task of its own; a wake-up is an entry in a deque. Between turns the loop serves sockets and gRPC.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from tartlet_runtime.abi.guest import Guest

log = logging.getLogger(__name__)

TURN_S = 0.004
"""How long a turn steps programs that compute on and on, plus one slice."""
WOKEN_S = 0.0025
"""How long a turn steps programs that were woken. What they said until then leaves, marked as a part of more: programs
whose tokens came in one frame should get the next in one step. Control works on the first while the last compute."""
HELD_S = 0.015
"""How long at most: a crowd of programs that wake one another must not hold the engines."""
AHEAD = 8
"""Programs that helpers may let compute ahead of the one whose words are taken."""

NEW_S = 0.0015
"""How long a turn steps programs for the first time, so that of many launched at once the first are heard of while the
last still start."""


class Runnable(Protocol):
    """A program as the driver sees it."""

    queued: bool

    def prepare(self) -> Guest | None:
        """Give the guest what it waits for; the guest, if `run` would let it compute. Raises nothing."""

    def run(self) -> None:
        """Step the guest once. Raises nothing."""

    def flush_journal(self) -> None:
        """Write what the journal has pending. Raises nothing."""


class Reader(Protocol):
    """A client's stream as the driver sees it."""

    def wake(self) -> None:
        """There is something to send."""


class Helpers(Protocol):
    """Lets guests compute while the loop's thread does something else."""

    def begin_step(self, guest: Guest) -> None:
        """Begin a step, as far as the guest goes. Raises nothing."""

    def end_step(self, guest: Guest) -> None:
        """Help, and wait for the end of that; `run` takes it from there. Raises nothing."""


class NoHelpers:
    """`run` does it all."""

    def begin_step(self, guest: Guest) -> None:
        """Nothing is done ahead."""

    def end_step(self, guest: Guest) -> None:
        """Nothing was."""


class Driver:
    """Runs programs on `loop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, now: Callable[[], float] = time.perf_counter) -> None:
        """`now` measures turns."""
        self.loop = loop
        self._now = now
        self._woken: deque[Runnable] = deque()
        self._begun: deque[tuple[Runnable, Guest | None]] = deque()  # the first of them, whose guests may be elsewhere
        self._new: deque[Runnable] = deque()
        self._busy: deque[Runnable] = deque()
        self.starting = 0
        """Programs that were launched and wait for control's word to begin."""
        self._journals: dict[Runnable, None] = {}
        self._readers: dict[Reader, None] = {}
        self._scheduled = False
        self._due: asyncio.Handle
        self._quiet_since = now()
        self.stirred = asyncio.Event()
        """There was a turn since somebody cleared this."""
        self.send_commands: Callable[[bool], None] = _nothing  # whether more follows at once
        self.helpers: Helpers = NoHelpers()
        self._owed = 0  # of those that are woken: how many belong together
        self._held_until = 0.0  # and how long control may wait for the last of them
        self._hurried = False

    def wake(self, program: Runnable) -> None:
        """Step `program` in a turn to come."""
        if not program.queued:
            program.queued = True
            self._woken.append(program)
        self.schedule()

    def hurry(self) -> None:
        """An engine has nothing else to do than to wait for those that are woken: helpers begin at once."""
        self._hurried = True
        woken, begun = self._woken, self._begun
        while woken and len(begun) < AHEAD and len(woken) + len(begun) > 1:
            program = woken.popleft()
            guest = program.prepare()
            if guest is not None:
                self.helpers.begin_step(guest)
            begun.append((program, guest))

    def begin(self, program: Runnable) -> None:
        """Step `program` for the first time in a turn to come."""
        if not program.queued:
            program.queued = True
            self._new.append(program)
        self.schedule()

    @property
    def num_new(self) -> int:
        """Programs that wait for their first step."""
        return len(self._new)

    @property
    def is_beginning(self) -> bool:
        """Whether programs are to run for the first time."""
        return bool(self._new or self.starting)

    def again(self, program: Runnable) -> None:
        """Step `program` in a turn to come; it computes without waiting, so those that wait come first."""
        if not program.queued:
            program.queued = True
            self._busy.append(program)
        self.schedule()

    def schedule(self) -> None:
        """Have a turn soon: something is to be flushed."""
        if not self._scheduled:
            self._scheduled = True
            self._due = self.loop.call_soon(self._turn)

    def turn_now(self) -> None:
        """Have the turn that is due at once: for whoever was just called by the loop, and has no more to add to it."""
        if self._scheduled:
            self._due.cancel()
            self._turn()

    def journal(self, program: Runnable) -> None:
        """Flush the program's journal at the end of the turn, before anything else leaves."""
        self._journals[program] = None
        self.schedule()

    def tell(self, reader: Reader) -> None:
        """Wake a client's stream at the end of the turn."""
        self._readers[reader] = None
        self.schedule()

    def idle_for(self, seconds: float) -> bool:
        """Whether nothing has been to do for that long."""
        return not self._scheduled and self._now() - self._quiet_since >= seconds

    def _turn(self) -> None:
        _call(self._step_some)
        self._scheduled = False  # only now: what those steps brought about leaves here
        if self._woken or self._begun or self._new or self._busy:
            self.schedule()  # ahead of the streams that are woken: one message tells of two turns of a burst
        self.flush()
        self._quiet_since = self._now()
        self.stirred.set()

    def _step_some(self) -> None:
        start = self._now()
        end, woken, begun = start + WOKEN_S, self._woken, self._begun
        if not self._owed:
            self._owed, self._held_until = len(begun) + len(woken), start + HELD_S
        while (woken or begun) and self._now() < end:
            if self._hurried:
                self.hurry()
            self._owed -= self._owed > 0
            _step(self._first())
        if not self._owed or self._now() >= self._held_until:
            self._owed, self._hurried = 0, False
        end, new = self._now() + NEW_S, self._new
        while new:
            _step(new.popleft())
            if self._now() >= end:
                break
        end, busy = start + TURN_S, self._busy
        while busy:  # at least one, however many were woken
            _step(busy.popleft())
            if self._now() >= end:
                break

    def _first(self) -> Runnable:
        """The first of those that were woken; its guest is here."""
        if not self._begun:
            return self._woken.popleft()
        program, guest = self._begun.popleft()
        if guest is not None:
            _call(partial(self.helpers.end_step, guest))
        return program

    def flush(self) -> None:
        """Let everything leave that earlier steps brought about."""
        while self._journals:  # a journal that can't be written ends its program
            journals, self._journals = self._journals, {}
            for program in journals:
                program.flush_journal()
        self.send_commands(self._owed > 0)
        if self._readers:
            readers, self._readers = self._readers, {}
            for reader in readers:
                reader.wake()


def _step(program: Runnable) -> None:
    program.queued = False
    _call(program.run)


def _call(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:  # a bug in one program's end must not stop the others
        log.exception("a program's step")


def _nothing(_more: bool) -> None:  # noqa: FBT001 - as what it stands for
    """Until control's link is wired."""
