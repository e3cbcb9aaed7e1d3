"""Keeps in a Redis what control has in memory: reads it at the start, writes changes in their order, and answers then.

Calls that come before all is read wait for that. What waits for a change is done once the Redis has the change. A call
that was answered twice because control died has one effect: the answers to the last calls of each run are kept, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from tartlet_control.values.room import Room
from tartlet_control.values.told import Answers, Note
from tartlet_control.values.values import Change, Found, Values, ValuesAway

log = logging.getLogger("tartlet.control")

TOLD_PROGRAMS: Final = 16_384
"""Runs whose answers are kept, at most."""
READ_S: Final = 30.0
"""Seconds that reading everything may take."""
LOAD_S: Final = 2.0
"""Control begins to serve after so many seconds, though not everything is read yet."""
RETRY_S: Final = (0.1, 2.0)
"""Seconds between attempts to reach a Redis that is away: at first, and at most."""
CLAIM_S: Final = 600.0
"""Seconds for which a new control keeps what belongs to programs that haven't come back."""
_AT_ONCE_BYTES: Final = 4 << 20
_LEAST_PART: Final = 1 / 4096
_CALL_BYTES: Final = 1024  # that a call takes beside its changes
_CHANGE_BYTES: Final = 256  # that a change takes beside its key and value: a message has one for each subscription
_ANSWER_BYTES: Final = 16  # that a run's answer takes in a write


class Kept(Protocol):
    """What is kept."""

    def begin(self) -> None:
        """Forget what was read: reading begins."""

    def take(self, found: Found) -> None:
        """Take an entry that was read."""

    def read_all(self) -> None:
        """Note that all entries were read."""

    def claim(self) -> None:
        """Drop what belongs to programs that haven't come back within `CLAIM_S`."""


class Waiting(NamedTuple):
    """What is to be stored, and what happens then."""

    tenant: str | None
    changes: Sequence[Change]
    notes: Sequence[Note]
    then: Callable[[], None]
    size: int
    """Bytes that it takes."""


class Keeper:
    """Reads and writes for one kind of things."""

    def __init__(self, values: Values, what: str, *, most_told: int, at_once: int) -> None:
        """Begin unread. `kept` must be set before `load` is called, and `run` does the work.

        Args:
            values: the Redis.
            what: names the things, for logs.
            most_told: answers that are kept for each run.
            at_once: changes of one write, beside those of its last call: others wait for the Redis meanwhile.
        """
        self.values = values
        self.kept: Kept
        self.is_loaded = False
        self.waiting: deque[Waiting] = deque()
        self.room = Room()
        self.answers = Answers(most_told)
        self._what = what
        self._at_once = at_once
        self._part = 1.0  # of the most that one write may hold: a Redis that is slow gets less at once
        self._early: deque[tuple[Callable[[], None], str | None, int]] = deque()  # work for when everything is read
        self._work = asyncio.Event()
        self._on_answered: Callable[[], None] = nothing
        self._claims: asyncio.TimerHandle | None = None

    # ---- calls ------------------------------------------------------------------------------------------------------

    def when_read(self, work: Callable[[], None], tenant: str | None, size: int = 0) -> None:
        """Do work once everything is read. `tenant`: whom it counts against; `size`: bytes that it takes until then."""
        if self.is_loaded:
            work()
        else:
            self._early.append((work, tenant, size + _CALL_BYTES))
            self.room.take(tenant, size + _CALL_BYTES)

    def when_read_or_claimed(self, work: Callable[[], None]) -> None:
        """Do work once everything is read. If too much waits for that, `claim` does what would have been done."""
        if self.is_loaded or not self.room.is_full:
            self.when_read(work, None)

    def write_later(
        self, tenant: str | None, changes: Sequence[Change], then: Callable[[], None], notes: Sequence[Note] = ()
    ) -> None:
        """Store changes and answers, behind all others, and do what follows. `tenant`: whom they count against."""
        size = _CALL_BYTES + _CHANGE_BYTES * len(changes)
        size += sum(len(change.key) + len(change.value or b"") for change in changes)
        self.waiting.append(Waiting(tenant, changes, notes, then, size))
        self.room.take(tenant, size)
        self._work.set()

    def returned(self, run: str) -> None:
        """Note that a run's program has come back to this control."""
        self._note(self.answers.returned(run))

    def forget(self, run: str) -> None:
        """Forget the answers to a run's calls: nobody asks for them again."""
        self._note(self.answers.forget(run))

    def _note(self, notes: list[Note]) -> None:
        if notes:
            self.write_later(None, (), nothing, notes)

    # ---- the Redis --------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read everything, unless the Redis takes too long: then that happens later, and calls wait."""
        try:
            async with asyncio.timeout(LOAD_S):
                await self._load()
        except (ValuesAway, TimeoutError) as e:
            log.warning("%s can't be read yet: %s", self._what, e)
            self._work.set()

    async def _load(self) -> None:
        told = dict[str, dict[int, int]]()
        self.kept.begin()
        async with asyncio.timeout(READ_S):
            async for found in self.values.read():
                if found.told is not None:
                    told[found.key] = found.told
                else:
                    self.kept.take(found)
        self.answers.read(told)
        self.is_loaded = True
        self.kept.read_all()
        self._claims = asyncio.get_running_loop().call_later(CLAIM_S, self._claim)
        early, self._early = self._early, deque()
        for _, tenant, size in early:
            self.room.give(tenant, size)
        for work, _, _ in early:
            self._do(work)
        if early:
            self._on_answered()

    def _claim(self) -> None:
        """Drop what belongs to programs that ended while no control was there."""
        for run in self.answers.absent:
            self.forget(run)
        self.kept.claim()

    async def run(self, on_answered: Callable[[], None]) -> None:
        """Store what waits until cancelled. `on_answered` is called after answers that had waited."""
        self._on_answered = on_answered
        first_s, most_s = RETRY_S
        wait_s = first_s
        while True:
            await self._work.wait()
            self._work.clear()
            try:
                if not self.is_loaded:
                    await self._load()
                await self.write()
                wait_s = first_s
            except (ValuesAway, TimeoutError) as e:
                if wait_s == first_s:
                    log.warning("the store's Redis is away, and programs wait for it: %s", e)
                self._work.set()
                await asyncio.sleep(wait_s)
                wait_s = min(most_s, 2 * wait_s)

    async def write(self) -> None:
        """Store what waits.

        Raises:
            ValuesAway: the Redis is away, and the rest still waits.
        """
        while self.waiting:
            some = self._next()
            changes = [change for each in some for change in each.changes]
            notes = [note for each in some for note in each.notes]
            told = self.answers.after(notes)
            if changes or told:
                try:
                    await self.values.write(changes, told)
                except (ValuesAway, TimeoutError):
                    self._part = max(_LEAST_PART, self._part / 2)
                    raise
                self._part = min(1.0, self._part * 1.25)
            self.answers.stored(notes, told)
            for each in some:
                self.waiting.popleft()
                self.room.give(each.tenant, each.size)
                self._do(each.then)
            while len(self.answers) > TOLD_PROGRAMS:
                self.forget(self.answers.oldest)
            self._on_answered()

    def _next(self) -> list[Waiting]:
        """Return what the next write stores, at least the first call that waits."""
        some, runs = list[Waiting](), set[str]()
        changes = size = 0
        for each in self.waiting:
            some.append(each)
            changes += max(1, len(each.changes))
            size += each.size
            for note in each.notes:
                if note.run not in runs:
                    runs.add(note.run)
                    size += _ANSWER_BYTES * self.answers.count(note.run)
            if changes >= self._part * self._at_once or size >= self._part * _AT_ONCE_BYTES:
                break
        return some

    @staticmethod
    def _do(work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:  # one program's answer must not end the writing for all
            log.exception("what waited for the store's Redis failed")

    async def close(self) -> None:
        """Write what waits, within a second."""
        if self._claims is not None:
            self._claims.cancel()
        try:
            async with asyncio.timeout(1.0):
                if self.is_loaded:
                    await self.write()
        except (ValuesAway, TimeoutError) as e:
            log.warning("the last changes of %s are lost: %s", self._what, e)
        await self.values.close()


def nothing() -> None:
    """No-op callback."""
