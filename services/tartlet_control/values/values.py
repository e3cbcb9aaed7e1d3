"""The interface of a store of tenants' values, and the changes that a store applies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


class ValuesAway(Exception):
    """The values can't be read or written now."""


@dataclass(frozen=True, slots=True)
class Change:
    """One write, with the answers to the last writes of the program that asked for it."""

    tenant: str
    key: str | None
    """None: only the answers change."""
    value: bytes | None
    """None: the key is deleted."""
    program_id: str
    told: Mapping[int, int]
    """By ticket: whether the key was there. Empty: the answers are forgotten."""

    @property
    def size(self) -> int:
        """Bytes of the value."""
        return len(self.value or b"")


@dataclass(frozen=True, slots=True)
class Found:
    """One entry that was read: a value, or with `told` the answers to a program's writes."""

    tenant: str
    key: str
    value: bytes = b""
    told: dict[int, int] | None = None


class Values(Protocol):
    """Keeps values."""

    def read(self) -> AsyncIterator[Found]:
        """Yield all entries.

        Raises:
            ValuesAway: they can't be read.
        """

    async def write(self, changes: Sequence[Change]) -> None:
        """Apply changes in order, all or none. Applying them twice has the same effect.

        Raises:
            ValuesAway: they may have been applied or not.
        """

    async def close(self) -> None:
        """Let go of the connection."""
