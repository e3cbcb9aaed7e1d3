"""Commands that the runtime answers itself, spread over turns: one program's thousand commands delay no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from tartlet_common.abi import Record

Caller = TypeVar("Caller")

ROWS_A_TURN = 1024
"""Commands that the runtime answers for one program in one turn."""
ROWS_S = 0.004
"""Seconds that the runtime works on them in one turn."""


class Backlog(Generic[Caller]):
    """The commands of one program that did not fit a turn.

    Each call names the program, so that the backlog holds no reference to it.
    """

    __slots__ = ("_now", "_rows", "_run", "_spent_s", "_waiting")

    def __init__(self, run: Callable[[Caller, Record, bytes], None], now: Callable[[], float]) -> None:
        """Start empty. `run` answers one command."""
        self._run = run
        self._now = now
        self._waiting: list[
            tuple[list[Record], bytes]
        ] = []  # few, because a program with waiting commands is held back
        self._rows = 0  # answered in this turn
        self._spent_s = 0.0  # on them

    def __bool__(self) -> bool:
        """Return whether commands wait for later turns."""
        return bool(self._waiting)

    def next_turn(self) -> None:
        """Begin a turn."""
        self._rows, self._spent_s = 0, 0.0

    def take(self, caller: Caller, rows: list[Record], payload: bytes) -> bool:
        """Answer commands if this turn has room and none wait before them. Returns whether some wait now."""
        if not self._waiting:
            rows = rows[self._answer(caller, rows, payload) :]
        if rows:
            self._waiting.append((rows, payload))
        return bool(rows)

    def work_off(self, caller: Caller) -> None:
        """Answer as many waiting commands as the turn has room for."""
        rows, payload = self._waiting.pop(0)
        done = self._answer(caller, rows, payload)
        if done < len(rows):
            self._waiting.insert(0, (rows[done:], payload))

    def clear(self) -> None:
        """Drop all commands: the program has ended."""
        self._waiting.clear()

    def _answer(self, caller: Caller, rows: list[Record], payload: bytes) -> int:
        """Answer the first commands, as far as the turn has room. Returns how many."""
        run, now = self._run, self._now
        start = now()
        end = start + ROWS_S - self._spent_s
        done = 0
        at = start
        for record in rows[: ROWS_A_TURN - self._rows]:
            if at >= end:
                break
            run(caller, record, payload)
            done += 1
            at = now()
        self._rows += done
        self._spent_s += at - start
        return done
