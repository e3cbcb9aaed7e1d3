"""The answers to the last calls of each run: a call that is answered twice because control died has one effect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Note(NamedTuple):
    """One answer, which is to be stored with what the call has changed."""

    run: str
    ticket: int
    """0: nobody asks for the run's answers again, and all are forgotten."""
    answer: int = 0


class Answers:
    """The answers that a Redis has, and those that wait for it. `store.teller` names the runs.

    Example:
        >>> answers = Answers(most=2)
        >>> notes = [answers.add("p/1", ticket, 10 * ticket) for ticket in (5, 6, 7)]
        >>> answers.find("p/1", 5), answers.find("p/2", 5)
        (50, None)
        >>> told = answers.after(notes)
        >>> told
        {'p/1': {6: 60, 7: 70}}
        >>> answers.stored(notes, told)
        >>> answers.find("p/1", 5), answers.find("p/1", 7)
        (None, 70)
    """

    def __init__(self, most: int) -> None:
        """Begin empty. `most` answers of each run are kept."""
        self._most = most
        self._stored: dict[str, dict[int, int]] = {}  # by run and ticket
        self._waiting: dict[str, dict[int, int]] = {}
        self._read: set[str] = set()  # runs whose answers were read, and that haven't come back since

    def __len__(self) -> int:
        """Return of how many runs the Redis has answers."""
        return len(self._stored)

    def read(self, told: dict[str, dict[int, int]]) -> None:
        """Take what the Redis has."""
        self._stored, self._read = told, set(told)

    @property
    def absent(self) -> list[str]:
        """The runs whose answers were read, and that haven't come back since."""
        return list(self._read)

    @property
    def oldest(self) -> str:
        """The run whose first answer is the oldest."""
        return next(iter(self._stored))

    def returned(self, run: str) -> list[Note]:
        """Note that a run has come back; return what is to be stored for that.

        The last release kept answers by the program alone. They are those of the run that comes back.
        """
        self._read.discard(run)
        program_id = run.partition("/")[0]
        if program_id == run or program_id not in self._read:
            return []
        self._read.discard(program_id)
        mine = self._stored.pop(program_id, {}) | self._stored.get(run, {})
        if not mine:  # they made no sense
            return [Note(program_id, 0)]
        self._stored[run] = mine
        ticket, answer = next(reversed(mine.items()))
        return [Note(run, ticket, answer), Note(program_id, 0)]

    def find(self, run: str, ticket: int) -> int | None:
        """Return the answer to a call that a run makes again; None: it's new. Nobody asks for a call without ticket."""
        if not ticket:
            return None
        waiting = self._waiting.get(run, {})
        return waiting[ticket] if ticket in waiting else self._stored.get(run, {}).get(ticket)

    def add(self, run: str, ticket: int, answer: int) -> Note:
        """Keep an answer; return what is to be stored."""
        self._read.discard(run)
        self._waiting.setdefault(run, {})[ticket] = answer
        return Note(run, ticket, answer)

    def forget(self, run: str) -> list[Note]:
        """Forget a run's answers, and those that the last release kept for its program; return what is to be stored."""
        names = [run]
        if (program_id := run.partition("/")[0]) in self._read:
            names.append(program_id)
        known = [name for name in dict.fromkeys(names) if name in self._stored or name in self._waiting]
        for name in known:
            self._read.discard(name)
            self._stored.pop(name, None)
            self._waiting.pop(name, None)
        return [Note(name, 0) for name in known]

    def count(self, run: str) -> int:
        """Return how many answers of a run are stored."""
        return len(self._stored.get(run, ()))

    def after(self, notes: Iterable[Note]) -> dict[str, dict[int, int]]:
        """Return what the Redis is to have of each run that the notes name."""
        told: dict[str, dict[int, int]] = {}
        for run, ticket, answer in notes:
            if not ticket:
                told[run] = {}
                continue
            if run not in told:
                told[run] = dict(self._stored.get(run, {}))
            told[run][ticket] = answer
            if len(told[run]) > self._most:
                del told[run][next(iter(told[run]))]
        return told

    def stored(self, notes: Iterable[Note], told: dict[str, dict[int, int]]) -> None:
        """Note that the Redis has what `after` returned for these notes."""
        for run, mine in told.items():
            if mine:
                self._stored[run] = mine
            else:
                self._stored.pop(run, None)
        for run, ticket, _ in notes:
            waiting = self._waiting.get(run)
            if waiting is not None and waiting.pop(ticket, None) is not None and not waiting:
                del self._waiting[run]
