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
"""Seconds that a turn gives to programs that compute without waiting, plus one slice."""
WOKEN_S = 0.0025
"""Seconds that a turn gives to woken programs. Then their commands leave, marked as a part of more: programs whose
tokens came in one frame should get their next tokens in one step. Control works on the first commands while the last
programs compute."""
HELD_S = 0.015
"""Most seconds for which commands are marked as parts: programs that keep waking one another must not hold engines."""
AHEAD = 8
"""Most programs that helpers let compute ahead of the program whose commands are being taken."""

NEW_S = 0.0015
"""Seconds that a turn gives to first steps. So the first of many programs launched at once send their messages while
the last ones still start."""


class Runnable(Protocol):
    """A program, as the driver sees it."""

    queued: bool

    def prepare(self) -> Guest | None:
        """Deliver what the guest waits for. Returns the guest if `run` would let it compute. Raises nothing."""

    def run(self) -> None:
        """Step the guest once. Raises nothing."""


class Reader(Protocol):
    """A client's stream, as the driver sees it."""

    def wake(self) -> None:
        """Let the stream send what is new."""


class Helpers(Protocol):
    """Threads that let guests compute while the loop's thread does other work."""

    def begin_step(self, guest: Guest) -> None:
        """Let the guest compute its next slice on another thread. Raises nothing."""

    def end_step(self, guest: Guest) -> None:
        """Wait until the slice is over; `run` then handles its results. Raises nothing."""


class NoHelpers:
    """Helpers of a driver that has no other threads."""

    def begin_step(self, guest: Guest) -> None:
        """No-op: `run` lets the guest compute."""

    def end_step(self, guest: Guest) -> None:
        """No-op: nothing was begun."""


class Driver:
    """The queues of programs that want to run, and the turns that serve them on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, now: Callable[[], float] = time.perf_counter) -> None:
        """Start with no programs. `now` measures turns, in seconds."""
        self.loop = loop
        self._now = now
        self._woken: deque[Runnable] = deque()
        self._begun: deque[tuple[Runnable, Guest | None]] = (
            deque()
        )  # woken programs whose guests may compute on other threads
        self._new: deque[Runnable] = deque()
        self._busy: deque[Runnable] = deque()
        self.starting = 0
        """Programs that were launched and that control has not answered yet."""
        self._readers: dict[Reader, None] = {}
        self._scheduled = False
        self._due: asyncio.Handle
        self._quiet_since = now()
        self.stirred = asyncio.Event()
        """Set by each turn."""
        self.send_commands: Callable[[bool], None] = _nothing  # called with whether more commands follow at once
        self.store_turn: Callable[[], None] = _store_nothing  # called before anything leaves
        self.is_crowded: Callable[[], bool] = _never  # whether records fill the memory: then it is called at once
        self.helpers: Helpers = NoHelpers()
        self._owed = 0  # woken programs of one group that have not run yet
        self._held_until = 0.0  # when the group's commands leave as a whole at the latest
        self._hurried = False

    def wake(self, program: Runnable) -> None:
        """Queue `program`, which was waiting, for a turn to come."""
        if not program.queued:
            program.queued = True
            self._woken.append(program)
        self.schedule()

    def hurry(self) -> None:
        """Let helpers begin with the woken programs at once, because an engine is idle until these have computed."""
        self._hurried = True
        woken, begun = self._woken, self._begun
        while woken and len(begun) < AHEAD and len(woken) + len(begun) > 1:
            program = woken.popleft()
            guest = program.prepare()
            if guest is not None:
                self.helpers.begin_step(guest)
            begun.append((program, guest))

    def begin(self, program: Runnable) -> None:
        """Queue `program` for its first step."""
        if not program.queued:
            program.queued = True
            self._new.append(program)
        self.schedule()

    @property
    def num_new(self) -> int:
        """Number of programs that wait for their first step."""
        return len(self._new)

    @property
    def is_beginning(self) -> bool:
        """Whether any program has not run yet."""
        return bool(self._new or self.starting)

    def again(self, program: Runnable) -> None:
        """Queue `program`, whose slice is over, behind woken and new programs."""
        if not program.queued:
            program.queued = True
            self._busy.append(program)
        self.schedule()

    def schedule(self) -> None:
        """Take a turn soon, because something is to be flushed."""
        if not self._scheduled:
            self._scheduled = True
            self._due = self.loop.call_soon(self._turn)

    def turn_now(self) -> None:
        """Take the turn that is due now, for a caller that has no more work to add to it."""
        if self._scheduled:
            self._due.cancel()
            self._turn()

    def tell(self, reader: Reader) -> None:
        """Wake a client's stream at the end of the turn."""
        self._readers[reader] = None
        self.schedule()

    def idle_for(self, seconds: float) -> bool:
        """Return whether there was nothing to do for that long."""
        return not self._scheduled and self._now() - self._quiet_since >= seconds

    def _turn(self) -> None:
        _call(self._step_some)
        self._scheduled = False  # only now: this turn flushes what its steps scheduled
        if self._woken or self._begun or self._new or self._busy:
            self.schedule()  # ahead of the woken streams, so that one message carries two turns of a burst
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
            self._step(self._first())
        if not self._owed or self._now() >= self._held_until:
            self._owed, self._hurried = 0, False
        end, new = self._now() + NEW_S, self._new
        while new:
            self._step(new.popleft())
            if self._now() >= end:
                break
        end, busy = start + TURN_S, self._busy
        while busy:  # at least one program, however long the woken ones took
            self._step(busy.popleft())
            if self._now() >= end:
                break

    def _step(self, program: Runnable) -> None:
        program.queued = False
        _call(program.run)
        if self.is_crowded():
            _call(self.store_turn)

    def _first(self) -> Runnable:
        """Take the first woken program, whose guest is on no other thread any more."""
        if not self._begun:
            return self._woken.popleft()
        program, guest = self._begun.popleft()
        if guest is not None:
            _call(partial(self.helpers.end_step, guest))
        return program

    def flush(self) -> None:
        """Send what earlier steps brought about: journals, then commands, then events."""
        self.store_turn()
        self.send_commands(self._owed > 0)
        if self._readers:
            readers, self._readers = self._readers, {}
            for reader in readers:
                reader.wake()


def _call(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:  # a bug in one program's end must not stop the others
        log.exception("a program's step")


def _never() -> bool:
    """Return False until journals are wired."""
    return False


def _store_nothing() -> None:
    """No-op until journals are wired."""


def _nothing(_more: bool) -> None:  # noqa: FBT001 - as what it stands for
    """No-op until control's link is wired."""
