"""Control's records to a durable program, kept until they are stored in its journal. Pure."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class Answer(NamedTuple):
    """One record of a delivery, as `Outbox.deliver` takes it."""

    event: int
    flags: int
    ticket: int
    queue: int
    a: int
    b: int
    c: int
    payload: bytes


class Answers:
    """The records to one program, numbered from 1. Those up to `stored` are forgotten.

    Example:
        >>> answers = Answers()
        >>> for ticket in (7, 8, 9):
        ...     answers.add(Answer(1, 1, ticket, 0, 0, 0, 0, b""))
        >>> answers.store(2); [answer.ticket for answer in answers.rest]
        [9]
    """

    __slots__ = ("_kept", "has_journal", "stored")

    def __init__(self, stored: int = 0, *, has_journal: bool = False) -> None:
        """Begin behind the record of a number. `has_journal`: the program's journal is known to be stored."""
        self.stored = stored
        self.has_journal = has_journal
        self._kept: deque[Answer] = deque()

    @property
    def rest(self) -> tuple[Answer, ...]:
        """The records that aren't stored, in order."""
        return tuple(self._kept)

    @property
    def last(self) -> int:
        """The number of the last record."""
        return self.stored + len(self._kept)

    def add(self, answer: Answer) -> None:
        """Keep the next record."""
        self._kept.append(answer)

    def store(self, count: int) -> None:
        """Forget the records up to number `count`, which the journal has."""
        self.has_journal = True
        kept = self._kept
        while self.stored < count and kept:
            kept.popleft()
            self.stored += 1
