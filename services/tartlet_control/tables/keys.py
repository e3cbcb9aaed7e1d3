"""Which program an idempotency key names (docs/faults.md).

Keys live in memory, and so end with control; the runtimes know them too, for the programs that they run and for those
whose output they keep, and tell a new control in their Hello. Until they can have done so, a key that it doesn't know
may still name a program: whoever asks with one waits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

KEYS_KEPT: Final = 65_536
"""Keys remembered; beyond them the oldest of programs that have ended are forgotten first."""
RETURN_S: Final = 5.0
"""Runtimes that were connected to an earlier control are back by then: an attempt to connect takes 3 s at most, and
they wait for 1 s at most between two."""


class Keys:
    """Program ids by tenant and key."""

    def __init__(self, lives: Callable[[str], bool], *, known_from_s: float) -> None:
        """`lives`: whether a program runs; from `known_from_s` on, a key that isn't here names nothing."""
        self.known_from_s = known_from_s
        self._lives = lives
        self._keys: OrderedDict[tuple[str, str], str] = OrderedDict()

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._keys)

    def named(self, tenant: str, key: str) -> str:
        """The program that a key names; "" if none, or if `key` is ""."""
        return self._keys.get((tenant, key), "")

    def uncertain(self, tenant: str, key: str, now: float) -> bool:
        """Whether a runtime that isn't back yet may have a program of this name."""
        return bool(key) and self.returning(now) and (tenant, key) not in self._keys

    def returning(self, now: float) -> bool:
        """Whether runtimes that an earlier control had may still be on their way back."""
        return now < self.known_from_s

    def add(self, tenant: str, key: str, program_id: str) -> None:
        """Let a key, unless it is "", name a program if it names none yet."""
        if not key:
            return
        self._keys.setdefault((tenant, key), program_id)
        if len(self._keys) > KEYS_KEPT:
            self._forget_oldest()

    def forget(self, tenant: str, key: str, program_id: str) -> None:
        """The program has never begun: its key names nothing."""
        if self._keys.get((tenant, key)) == program_id:
            del self._keys[tenant, key]

    def _forget_oldest(self) -> None:
        for _ in range(len(self._keys)):
            name, program_id = self._keys.popitem(last=False)
            if not self._lives(program_id):
                return
            self._keys[name] = program_id
