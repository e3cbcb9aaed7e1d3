"""Keeps in a Redis what control has in memory: reads it at the start, writes changes in their order, and answers then.

Calls that come before all is read wait for that. What waits for a change is done once the Redis has the change. A call
that was answered twice because control died has one effect: the answers to the last calls of each run are kept, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from tartlet_common.errors.registry import Overloaded
from tartlet_control.values.values import Change, Found, Values, ValuesAway

log = logging.getLogger("tartlet.control")

MAX_WAITING: Final = 16_384
"""Calls that wait for the Redis, at most."""
MAX_WAITING_BYTES: Final = 32 << 20
"""Bytes that they take, at most."""
TOLD_PROGRAMS: Final = 16_384
"""Programs whose answers are kept, at most."""
READ_S: Final = 30.0
"""Seconds that reading everything may take."""
LOAD_S: Final = 2.0
"""Control begins to serve after so many seconds, though not everything is read yet."""
RETRY_S: Final = (0.1, 2.0)
"""Seconds between attempts to reach a Redis that is away: at first, and at most."""
CLAIM_S: Final = 600.0
"""Seconds for which a new control keeps what belongs to programs that haven't come back."""
_AT_ONCE_BYTES: Final = 4 << 20
_CHANGE_BYTES: Final = 256  # that a change takes beside its value: a message has one for each subscription


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

    changes: list[Change]
    then: Callable[[], None]

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return sum(change.size for change in self.changes) + _CHANGE_BYTES * (1 + len(self.changes))


class Keeper:
    """Reads and writes for one kind of things."""

    def __init__(self, values: Values, what: str, *, most_told: int, at_once: int) -> None:
        """Begin unread. `kept` must be set before `load` is called, and `run` does the work.

        Args:
            values: the Redis.
            what: names the things, for logs.
            most_told: answers that are kept for each program.
            at_once: changes of one write, beside those of its last call: others wait for the Redis meanwhile.
        """
        self.values = values
        self.kept: Kept
        self.is_loaded = False
        self.waiting: deque[Waiting] = deque()
        self._what = what
        self._most_told = most_told
        self._at_once = at_once
        self._told: dict[str, dict[int, int]] = {}  # the answers to each program's last calls, by ticket
        self._read: set[str] = set()  # programs whose answers were read, and that have made no call since
        self._early: deque[tuple[Callable[[], None], int]] = deque()  # work that came before everything was read
        self._waiting_bytes = 0
        self._work = asyncio.Event()
        self._on_answered: Callable[[], None] = nothing
        self._claims: asyncio.TimerHandle | None = None

    # ---- calls ------------------------------------------------------------------------------------------------------

    def check_room(self) -> None:
        """Check that another call may wait.

        Raises:
            Overloaded: too much waits for the Redis.
        """
        if len(self.waiting) + len(self._early) >= MAX_WAITING or self._waiting_bytes > MAX_WAITING_BYTES:
            raise Overloaded(what="calls that wait for the store's Redis", limit=MAX_WAITING)

    def when_read(self, work: Callable[[], None], size: int = 0) -> None:
        """Do work once everything is read. `size`: bytes that it takes until then."""
        if self.is_loaded:
            work()
        else:
            self._early.append((work, size))
            self._waiting_bytes += size

    def write_later(self, changes: list[Change], then: Callable[[], None]) -> None:
        """Store changes, behind all others, and do what follows."""
        self.waiting.append(Waiting(changes, then))
        self._waiting_bytes += self.waiting[-1].size
        self._work.set()

    def answer(self, program_id: str, ticket: int) -> int | None:
        """Return the answer to a call that was stored before control died, and that the program hasn't heard."""
        told = self._told.get(program_id) or self._told.get(program_id.partition("/")[0], {})  # as the last release did
        return told.get(ticket) if ticket else None

    def note(self, program_id: str, ticket: int, answer: int) -> dict[int, int]:
        """Return the answers to a program's last calls, with this one. Without a ticket nobody asks for it again."""
        self._read.discard(program_id)
        if not ticket:
            return dict(self._told.get(program_id, {}))
        mine = self._told.setdefault(program_id, {})
        if len(self._told) > TOLD_PROGRAMS:
            del self._told[next(iter(self._told))]
        mine[ticket] = answer
        if len(mine) > self._most_told:
            del mine[next(iter(mine))]
        return dict(mine)

    def forget(self, program_id: str) -> None:
        """Forget the answers to a program's calls: nobody asks for them again."""
        self._read.discard(program_id)
        if self._told.pop(program_id, None) is not None:
            self.write_later([Change("", None, None, program_id, {})], nothing)

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
        self._told, self._read, self.is_loaded = told, set(told), True
        self.kept.read_all()
        self._claims = asyncio.get_running_loop().call_later(CLAIM_S, self._claim)
        early, self._early = self._early, deque()
        self._waiting_bytes -= sum(size for _, size in early)
        for work, _ in early:
            work()
        if early:
            self._on_answered()

    def _claim(self) -> None:
        """Drop what belongs to programs that ended while no control was there."""
        for program_id in list(self._read):
            self.forget(program_id)
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
            some, changes, size = list[Waiting](), list[Change](), 0
            for each in self.waiting:
                some.append(each)
                changes += each.changes
                size += each.size
                if len(changes) >= self._at_once or len(some) >= self._at_once or size >= _AT_ONCE_BYTES:
                    break
            if changes:
                await self.values.write(changes)
            for each in some:
                self.waiting.popleft()
                self._waiting_bytes -= each.size
                try:
                    each.then()
                except Exception:  # one program's answer must not end the writing for all
                    log.exception("what follows a write failed")
            self._on_answered()

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
