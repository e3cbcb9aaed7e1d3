"""Idempotency keys, and the programs that they name (docs/faults.md).

Keys live in memory and end with control. The runtimes know the keys of the programs that they run and of those whose
output they keep, and tell them to a new control in their Hello. Until all runtimes can have done so, a key that control
doesn't know may still name a program, and a request with such a key waits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

KEYS_KEPT: Final = 65_536
"""Keys remembered. Beyond them, the oldest keys of programs that have ended are forgotten first."""
RETURN_S: Final = 5.0
"""Time in which the runtimes of an earlier control are back: an attempt to connect takes at most 3 s, and a runtime
waits at most 1 s between two attempts."""


class Keys:
    """Program ids by tenant and key."""

    def __init__(self, lives: Callable[[str], bool], *, known_from_s: float) -> None:
        """Begin without keys.

        Args:
            lives: Tells whether a program of this id runs.
            known_from_s: From this time on, a key that isn't here names nothing.
        """
        self.known_from_s = known_from_s
        self._lives = lives
        self._keys: OrderedDict[tuple[str, str], str] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of keys that are remembered."""
        return len(self._keys)

    def named(self, tenant: str, key: str) -> str:
        """Return the program that a key names; "" if it names none, or if `key` is ""."""
        return self._keys.get((tenant, key), "")

    def returning(self, now: float) -> bool:
        """Return whether runtimes of an earlier control may still be on their way back."""
        return now < self.known_from_s

    def add(self, tenant: str, key: str, program_id: str) -> None:
        """Let a key name a program, unless the key is "" or names one already."""
        if not key:
            return
        self._keys.setdefault((tenant, key), program_id)
        if len(self._keys) > KEYS_KEPT:
            self._forget_oldest()

    def forget(self, tenant: str, key: str, program_id: str) -> None:
        """Remove the key of a program that has never begun."""
        if self._keys.get((tenant, key)) == program_id:
            del self._keys[tenant, key]

    def _forget_oldest(self) -> None:
        for _ in range(len(self._keys)):
            name, program_id = self._keys.popitem(last=False)
            if not self._lives(program_id):
                return
            self._keys[name] = program_id
