"""The journals of all running programs: what a turn added is stored as one, and what waits for that goes on then.

While the store is slow, unstored bytes are bounded: at the bound, guests get no deliveries. A store that stores nothing
for `grace_s` ends the programs that wait for it in JournalUnavailable, or lets them go on unprotected if they were
launched so.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from tartlet_common.errors.registry import JournalUnavailable, TartletError
from tartlet_runtime.journal.journal import Journal
from tartlet_runtime.journal.space import Space
from tartlet_runtime.journal.store import JournalStore, Part, Turn

log = logging.getLogger(__name__)


class Waiter(Protocol):
    """A program that keeps a journal, as the journals see it."""

    journal: Journal
    heard: int
    """How many of control's records its journal has, stored or not."""

    def acknowledge(self, heard: int) -> None:
        """Take note that its journal is stored up to so many of control's records. Raises nothing."""

    def release(self, turn: int) -> None:
        """Let go what waits for this turn, or an earlier one. Raises nothing."""

    def lose(self, error: TartletError) -> None:
        """Go on without a journal, or end with `error`. Raises nothing."""

    def room(self) -> None:
        """Take deliveries again. Raises nothing."""


class Journals:
    """Collects what programs add to their journals, and stores it turn by turn."""

    def __init__(
        self,
        store: JournalStore,
        space: Space,
        *,
        now: Callable[[], float],
        limit_bytes: int = 16 << 20,
        grace_s: float = 5.0,
    ) -> None:
        """Begin without programs.

        Args:
            store: where journals are stored.
            space: the bytes that all of them may take.
            now: a monotonic clock, in seconds.
            limit_bytes: unstored bytes at which guests get no deliveries.
            grace_s: how long the store may store nothing before programs that wait for it end.
        """
        self._store = store
        self._space = space
        self._now = now
        self._limit_bytes = limit_bytes
        self._grace_s = grace_s
        self.immediate = store.immediate
        """Whether what a turn adds is stored before anything of the turn leaves."""
        self.turn = 1
        """The number of the turn whose records are collected now."""
        self.stored_turn = 0
        """The number of the last turn that is stored."""
        self._added: dict[Waiter, None] = {}  # with something to store
        self._waiting: dict[Waiter, None] = {}  # with something that waits to be stored
        self._starved: dict[Waiter, None] = {}  # that get no deliveries
        self._heard: deque[tuple[int, list[tuple[Waiter, int]]]] = deque()  # what each unstored turn has of control
        self._by_id: dict[str, Waiter] = {}
        self._since: float | None = None  # when the oldest unstored turn was appended, or the last one was stored
        self.on_added: Callable[[], None] = _nothing
        """Called when a turn has something to store."""
        self.on_stored: Callable[[], None] = _nothing
        """Called when something that waited was let go."""
        store.listen(self)

    @property
    def store_name(self) -> str:
        """The name of the store; "" while it isn't known."""
        return self._store.name

    @property
    def full(self) -> bool:
        """Whether so much is unstored that guests get no deliveries."""
        return not self.immediate and self._store.unstored_bytes >= self._limit_bytes

    def check(self) -> None:
        """Check that the store takes journals of new programs.

        Raises:
            JournalUnavailable: it has stored nothing for longer than its grace, or is full.
        """
        if self.full or self._is_overdue:
            raise JournalUnavailable(detail=self._trouble)

    def open(self, program_id: str, header: bytes, limit_bytes: int) -> Journal:
        """Open a journal for a new program; its header, encoded, is pending.

        Raises:
            JournalFull: the header alone doesn't fit the program's limit.
            JournalUnavailable: the store takes none.
            Overloaded: the journals of running programs take all the space.
            DiskFull: there is no room for a file.
        """
        self.check()
        if self._space.is_crowded:
            self.flush()  # a header holds a whole source
        journal = Journal(program_id, header, limit_bytes, self._space)
        try:
            self._space.begin(len(header))
        except TartletError:
            journal.discard()
            raise
        try:
            self._store.open(program_id)
        except TartletError:
            journal.discard()
            self._space.end(len(header))
            raise
        return journal

    def adopt(self, program_id: str, header: bytes, limit_bytes: int, stored_bytes: int, epoch: int) -> Journal:
        """Continue a journal that the store has given this runtime as its new owner.

        Raises:
            Overloaded: the journals of running programs take all the space.
        """
        self._space.begin(stored_bytes)
        return Journal(program_id, header, limit_bytes, self._space, epoch=epoch, stored_bytes=stored_bytes)

    def begin_anew(self, journal: Journal, header: bytes, limit_bytes: int) -> Journal:
        """Begin the next journal of a program; the store drops the one before when it has the header.

        Raises:
            JournalFull: the header alone doesn't fit the program's limit.
            Overloaded: the journals of running programs take all the space.
        """
        after = Journal(journal.program_id, header, limit_bytes, self._space, epoch=journal.epoch)
        self._space.end(journal.counted_bytes)
        self._space.begin(len(header))
        journal.discard()
        self._store.begin_anew(journal.program_id)
        waiter = self._by_id.pop(journal.program_id, None)
        if waiter is not None:
            self._leave(waiter)
        return after

    def close(self, journal: Journal, *, keep: bool) -> None:
        """Note that a program has ended. The store keeps its journal if `keep`, or if it may still be needed."""
        if keep and (part := journal.take()) is not None:
            self._append((part,))
        journal.discard()
        self._space.end(journal.counted_bytes)
        self._store.close(journal.program_id, keep=keep)
        waiter = self._by_id.pop(journal.program_id, None)
        if waiter is not None:
            self._leave(waiter)

    def leave(self, journal: Journal) -> None:
        """Leave a journal to another runtime, which owns it or is about to."""
        journal.discard()
        self._space.end(journal.counted_bytes)
        self._store.leave(journal.program_id, journal.epoch)
        waiter = self._by_id.pop(journal.program_id, None)
        if waiter is not None:
            self._leave(waiter)

    def forget(self, program_id: str) -> None:
        """Delete the journal of a program whose record is deleted, unless it is kept for a replay."""
        self._store.forget(program_id)

    # ---- what programs do ---------------------------------------------------------------------------------------

    def added(self, waiter: Waiter) -> None:
        """Store what the program's journal has pending at the end of this turn."""
        if not self._added:
            self.on_added()
        self._added[waiter] = None
        self._by_id[waiter.journal.program_id] = waiter

    def wait(self, waiter: Waiter) -> None:
        """Tell the program (`Waiter.release`) when more is stored."""
        self._waiting[waiter] = None

    def starve(self, waiter: Waiter) -> None:
        """Tell the program (`Waiter.room`) when it may take deliveries again."""
        self._starved[waiter] = None

    def flush(self) -> None:
        """Store what was added in this turn. A journal that can't be stored ends its program."""
        while self._added:  # an end is a record too
            added, self._added = self._added, {}
            parts = [part for waiter in added if (part := waiter.journal.take()) is not None]
            if parts:
                self._heard.append((self.turn, [(waiter, waiter.heard) for waiter in added]))
                self._append(tuple(parts))

    def _append(self, parts: tuple[Part, ...]) -> None:
        turn, self.turn = self.turn, self.turn + 1
        if self._since is None:
            self._since = self._now()
        self._store.append(Turn(turn, parts))

    # ---- what the store says (`store.Listener`) -------------------------------------------------------------------

    def stored(self, turn: int) -> None:
        """Let go what waits for this turn, and the turns before it."""
        self.stored_turn = turn
        self._since = None if turn == self.turn - 1 else self._now()
        while self._heard and self._heard[0][0] <= turn:
            for waiter, heard in self._heard.popleft()[1]:
                waiter.acknowledge(heard)
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            waiter.release(turn)
        if self._starved and not self.full:
            starved, self._starved = self._starved, {}
            for waiter in starved:
                waiter.room()
        if waiting:
            self.on_stored()

    def refused(self, program_id: str, error: TartletError) -> None:
        """End a program whose part was refused."""
        waiter = self._by_id.get(program_id)
        if waiter is not None:
            self._leave(waiter)
            self._store.drop(program_id)
            waiter.lose(error)
            self.on_stored()

    # ---- a store that doesn't answer ------------------------------------------------------------------------------

    @property
    def _is_overdue(self) -> bool:
        return self._since is not None and self._now() - self._since > self._grace_s

    @property
    def _trouble(self) -> str:
        return self._store.trouble or f"nothing was stored for {self._grace_s:g} s"

    def tend(self) -> None:
        """Give up waiting for a store that has stored nothing for its grace. Call this a few times a second."""
        if self.immediate or not self._is_overdue:
            return
        lost = dict.fromkeys([*self._waiting, *self._starved])
        if not lost:
            return
        log.error("the journals' store: %s; %d programs wait for it", self._trouble, len(lost))
        for waiter in lost:
            self._leave(waiter)
            self._store.drop(waiter.journal.program_id)
            waiter.lose(JournalUnavailable(detail=self._trouble))
        self.on_stored()

    def _leave(self, waiter: Waiter) -> None:
        for group in (self._added, self._waiting, self._starved):
            group.pop(waiter, None)


def _nothing() -> None:
    """No-op until the driver is wired."""
