"""Where journals are stored: the interface that files and Redis streams share.

A runtime hands over what a turn added to all journals at once, and hears later how far it is stored. Stored means that
it survives SIGKILL of the runtime and of the store. The store also knows each program's owner by its epoch: whoever
takes a program over raises the epoch, and what an earlier owner appends is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from tartlet_common.errors.registry import TartletError
from tartlet_runtime.journal.records import JournalHeader

FIRST_EPOCH = 1
"""The epoch of a program's first owner."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one program adds to its journal in one turn: whole records, behind the header in its first part."""

    program_id: str
    epoch: int
    data: bytes
    begins: bool = False
    """Whether this is the first part."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What a turn adds to the journals of all programs."""

    number: int
    """Turns count from 1."""
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(len(part.data) for part in self.parts)


@dataclass(frozen=True, slots=True)
class StoredJournal:
    """A journal as it is stored, with the epoch of its owner."""

    epoch: int
    data: bytes


@dataclass(frozen=True, slots=True)
class LiveJournal:
    """A journal of a program that can be run again and has not ended, or whose end nobody was told.

    Its owner may live.
    """

    epoch: int
    header: JournalHeader


class Listener(Protocol):
    """Who hears how far turns are stored."""

    def stored(self, turn: int) -> None:
        """Take the number of the last turn that is stored: all turns before it are stored too."""

    def refused(self, program_id: str, error: TartletError) -> None:
        """Take the reason why a program's part was not stored: `Superseded`, `JournalUnavailable` or `DiskFull`."""


class JournalStore(Protocol):
    """Journals of one runtime, in one place."""

    immediate: bool
    """Whether `append` returns only when the turn is stored."""
    name: str
    """Runtimes whose stores have the same name can read each other's journals; "" while it isn't known."""

    @property
    def unstored_bytes(self) -> int:
        """Bytes that were appended and are not stored."""

    @property
    def trouble(self) -> str:
        """Why the store doesn't answer; "" if it does."""

    async def run(self) -> None:
        """Do the store's work until cancelled, or until there is none."""

    def listen(self, listener: Listener) -> None:
        """Tell `listener` from now on how far turns are stored."""

    def open(self, program_id: str) -> None:
        """Make room for a new program's journal.

        Raises:
            DiskFull: there is none.
        """

    def begin_anew(self, program_id: str) -> None:
        """Let the program's next part replace its journal. What isn't stored of the journal is forgotten."""

    def append(self, turn: Turn) -> None:
        """Store a turn; `Listener.stored` is called then."""

    def drop(self, program_id: str) -> None:
        """Forget what isn't stored of a program that goes on, or ends, without it."""

    def close(self, program_id: str, *, keep: bool) -> None:
        """Note that a program has ended. Its journal stays if it is to be kept, or may still be needed."""

    def leave(self, program_id: str, epoch: int) -> None:
        """Let go of a journal that this runtime owned with `epoch`, for its next owner, which may be this runtime."""

    def forget(self, program_id: str) -> None:
        """Delete the journal of an ended program in the background, unless `close` was asked to keep it for replays."""

    async def take_over(self, program_id: str, epoch: int) -> StoredJournal:
        """Become the owner of a program with `epoch`, which must be higher than its owner's, and return its journal.

        Raises:
            UnknownProgram: the store has no such journal.
            Superseded: somebody else has become the owner with this epoch or a later one.
            JournalUnavailable: the journal is shorter than what was stored, or the store can't be reached.
        """

    async def read(self, program_id: str) -> StoredJournal:
        """Return a program's journal.

        Raises:
            UnknownProgram: the store has no such journal.
            JournalUnavailable: the journal is shorter than what was stored, or the store can't be reached.
        """

    async def live(self) -> list[LiveJournal]:
        """Return the journals whose programs have not ended, or whose ends nobody was told.

        Those of owners that are known to live may be left out.

        Raises:
            JournalUnavailable: the store can't be reached.
        """

    async def delete(self, program_ids: Iterable[str]) -> None:
        """Delete journals, with their owners. Unknown ones are no error."""
