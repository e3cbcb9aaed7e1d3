"""What the runtime answers itself, cut into turns: one program's thousand commands must not make the others wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from tartlet_common.abi import Record

Caller = TypeVar("Caller")

ROWS_A_TURN = 1024
"""Commands that the runtime answers for one program in one turn."""
ROWS_S = 0.004
"""And how long it works on them."""


class Backlog(Generic[Caller]):
    """A program's commands for the runtime, as far as there was no room for them in a turn.

    It is told each time whose they are: who has it isn't to be held by it.
    """

    __slots__ = ("_now", "_rows", "_run", "_spent_s", "_waiting")

    def __init__(self, run: Callable[[Caller, Record, bytes], None], now: Callable[[], float]) -> None:
        """`run` answers one."""
        self._run = run
        self._now = now
        self._waiting: list[tuple[list[Record], bytes]] = []  # few: whoever has some is held back
        self._rows = 0  # answered in this turn
        self._spent_s = 0.0  # on them

    def __bool__(self) -> bool:
        """Whether commands wait for turns to come."""
        return bool(self._waiting)

    def next_turn(self) -> None:
        """There is room again."""
        self._rows, self._spent_s = 0, 0.0

    def take(self, caller: Caller, rows: list[Record], payload: bytes) -> bool:
        """Answer them, if there is room and none wait before them; whether some wait now."""
        if not self._waiting:
            rows = rows[self._answer(caller, rows, payload) :]
        if rows:
            self._waiting.append((rows, payload))
        return bool(rows)

    def work_off(self, caller: Caller) -> None:
        """Answer as many as one turn has room for."""
        rows, payload = self._waiting.pop(0)
        done = self._answer(caller, rows, payload)
        if done < len(rows):
            self._waiting.insert(0, (rows[done:], payload))

    def clear(self) -> None:
        """Nobody waits for the answers any more."""
        self._waiting.clear()

    def _answer(self, caller: Caller, rows: list[Record], payload: bytes) -> int:
        """Answer the first ones, as far as the turn has room; how many."""
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
