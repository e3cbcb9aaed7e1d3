"""What a store of the directory does, whatever holds the entries.

Entries lie in sections: each is a field and a value. A control writes a *generation*: it begins one beside that which
is there, writes all entries, and makes it live. So a control that dies meanwhile leaves the earlier one whole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Protocol

Entry = tuple[bytes, bytes | None]
"""A field and its value; None: the field is gone."""
Entries = Sequence[Entry]
Found = list[tuple[bytes, bytes]]


class StoreAway(Exception):
    """The store doesn't answer, or takes nothing. Nothing is known of what was written last."""


class StoreLost(Exception):
    """The generation is gone: the store was emptied, or another control began one."""


class StoreTaken(Exception):
    """A control with a higher epoch writes the directory."""


class Store(Protocol):
    """Holds the entries of one release."""

    def read(self) -> AsyncIterator[tuple[str, Found]]:
        """Yield the entries of the live generation with their section, some at a time, in `reading_order`.

        Raises:
            StoreAway: it doesn't answer.
        """

    async def begin(self) -> None:
        """Begin a generation without entries; `write` writes it from now on.

        Raises:
            StoreAway: it doesn't answer.
            StoreTaken: another control leads.
        """

    async def commit(self) -> None:
        """Make the generation that was begun live, and delete all others.

        Raises:
            StoreAway, StoreLost, StoreTaken: as `write`.
        """

    async def write(self, section: str, entries: Entries) -> None:
        """Set and delete entries of a section.

        Raises:
            StoreAway: it doesn't answer, or has no room.
            StoreLost: the generation is gone.
        """

    async def drop(self, section: str) -> None:
        """Delete a section.

        Raises:
            StoreAway, StoreLost: as `write`.
        """

    async def check(self) -> None:
        """Check that all that was written is there, and that it stays.

        Raises:
            StoreAway: it doesn't answer.
            StoreLost: the generation is gone, or lacks entries.
        """

    async def close(self) -> None:
        """Close connections."""


def reading_order(sections: Iterable[str]) -> list[str]:
    """Return sections in the order in which they are read: those of single engines, which are long, last.

    Example:
        >>> reading_order(["prefixes/e", "names", "contexts"])
        ['contexts', 'names', 'prefixes/e']
    """
    return sorted(sections, key=lambda section: ("/" in section, section))


def grown(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the sections that have entries, with their number."""
    return {section: size for section, size in sizes.items() if size}
