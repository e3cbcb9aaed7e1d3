"""A store in the memory of this process, which does what Redis does: several controls may share its `Shelf`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import count

from tartlet_control.directory.store import Entries, Found, StoreLost, StoreTaken, grown, reading_order

_numbers = count(1)


@dataclass(slots=True)
class Shelf:
    """What outlives a control: generations with their epoch and sections, and which of them is live."""

    generations: dict[int, tuple[int, dict[str, dict[bytes, bytes]]]] = field(default_factory=dict)
    live: int = 0


class MemoryStore:
    """One control's view of a shelf."""

    def __init__(self, shelf: Shelf, epoch: int) -> None:
        self._shelf = shelf
        self._epoch = epoch
        self._generation = 0
        self._sizes: dict[str, int] = {}

    async def read(self) -> AsyncIterator[tuple[str, Found]]:
        """Yield the entries of the live generation."""
        _, sections = self._shelf.generations.get(self._shelf.live, (0, {}))
        for section in reading_order(sections):
            yield section, list(sections[section].items())

    async def begin(self) -> None:
        """Begin a generation."""
        if any(epoch > self._epoch for epoch, _ in self._shelf.generations.values()):
            raise StoreTaken
        self._generation = next(_numbers)
        self._sizes = {}
        self._shelf.generations[self._generation] = (self._epoch, {})

    async def commit(self) -> None:
        """Make the generation live."""
        sections = self._sections()
        self._shelf.generations = {self._generation: (self._epoch, sections)}
        self._shelf.live = self._generation

    async def write(self, section: str, entries: Entries) -> None:
        """Set and delete entries."""
        held = self._sections().setdefault(section, {})
        for name, value in entries:
            if value is None:
                held.pop(name, None)
            else:
                held[name] = value
        self._sizes[section] = len(held)

    async def drop(self, section: str) -> None:
        """Delete a section."""
        self._sections().pop(section, None)
        self._sizes.pop(section, None)

    async def check(self) -> None:
        """Compare the sizes of sections."""
        if grown({section: len(held) for section, held in self._sections().items()}) != grown(self._sizes):
            raise StoreLost

    async def close(self) -> None:
        """No-op: there is no connection."""

    def _sections(self) -> dict[str, dict[bytes, bytes]]:
        found = self._shelf.generations.get(self._generation)
        if found is None:
            raise StoreLost
        return found[1]
