"""The interface of a store of tenants' values, and the changes that a store applies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

Told = Mapping[str, Mapping[int, int]]
"""The answers to the last calls of runs, by run and ticket. An empty one: the answers are forgotten."""


class ValuesAway(Exception):
    """The values can't be read or written now."""


class Change(NamedTuple):
    """One write."""

    tenant: str
    key: str
    value: bytes | None
    """None: the key is deleted."""


@dataclass(frozen=True, slots=True)
class Found:
    """One entry that was read: a value, or with `told` the answers to a run's writes."""

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

    async def write(self, changes: Sequence[Change], told: Told) -> None:
        """Apply changes in order, and keep what runs are told, all or none. Twice has the same effect.

        Raises:
            ValuesAway: they may have been applied or not.
        """

    async def close(self) -> None:
        """Let go of the connection."""
