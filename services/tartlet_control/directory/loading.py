"""Takes what an earlier control left in the directory into the core. What makes no sense is left out."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from tartlet_control.core.core import Core
from tartlet_control.directory import entries
from tartlet_control.directory.entries import BadEntry, Named
from tartlet_control.directory.store import Found
from tartlet_control.order import book
from tartlet_control.placement.view import Beginning
from tartlet_control.sharing.names import MAX_NAMES, Done, Key, Version
from tartlet_control.sharing.reuse import digests_of

log = logging.getLogger("tartlet.control")

MOST_ROWS: Final = 1 << 21
"""Rows of all engines together that are remembered."""
MOST_ENTRIES: Final = 1 << 17
"""Entries of any other section that are read."""
MOST_CONTEXT_BYTES: Final = 1 << 28
"""Bytes of tokens that are read."""
_WORD: Final = 8
Rows = NDArray[np.uint64]
Field = TypeVar("Field")
Value = TypeVar("Value")


class Recalled:
    """Which engines had which rows before this control began. Workers have dropped them since.

    The programs that go on compute their rows again where they were. So contexts with the same beginning are placed
    there too, as long as no engine has any of it.
    """

    def __init__(self) -> None:
        self._of_engine: dict[str, Rows] = {}
        self._hits = 0

    def __len__(self) -> int:
        return sum(map(len, self._of_engine.values()))

    @property
    def hits(self) -> int:
        """How many beginnings were found here."""
        return self._hits

    def put(self, engine_id: str, rows: Rows) -> None:
        """Remember rows of an engine, by the first bytes of their digests, sorted."""
        self._of_engine[engine_id] = rows

    def clear(self) -> None:
        """Remember nothing more."""
        self._of_engine.clear()

    def held(self, beginning: Beginning) -> dict[str, int]:
        """Return how many tokens of a beginning each engine had."""
        if not self._of_engine:
            return {}
        asked = _words(b"".join(digest[:_WORD] for digest in digests_of(beginning)))
        found = {engine_id: _leading(rows, asked) for engine_id, rows in self._of_engine.items()}
        held = {engine_id: count * beginning.page_size for engine_id, count in found.items() if count}
        self._hits += bool(held)
        return held


class Loader:
    """Collects the entries that are read, and applies them: names and places first, and rows once all are there."""

    def __init__(self, core: Core, recalled: Recalled) -> None:
        self._core = core
        self._recalled = recalled
        self._names: dict[bytes, bytes] = {}
        self._contexts: dict[bytes, bytes] = {}
        self._done: dict[tuple[str, Key], Done] = {}
        self._context_bytes = 0
        self._rows: dict[str, list[bytes]] = {}
        self._num_rows = 0
        self._homes: dict[str, dict[str, str]] = {}
        self._bad: Counter[str] = Counter()
        self._why: dict[str, str] = {}

    def add(self, section: str, found: Found) -> None:
        """Take some entries of a section."""
        for field, value in found:
            try:
                self._add(section, field, value)
            except (BadEntry, UnicodeError) as e:
                self._drop(section, str(e))

    def _add(self, section: str, field: bytes, value: bytes) -> None:
        match section:
            case entries.NAMES:
                self._hold(self._names, field, value)
            case entries.DONE:
                program_id, of, last = entries.done_of(field, value)
                self._hold(self._done, (program_id, of), last)
            case entries.CONTEXTS:
                self._context_bytes += len(value)
                if self._context_bytes > MOST_CONTEXT_BYTES:
                    raise BadEntry(f"more than {MOST_CONTEXT_BYTES} bytes")
                self._hold(self._contexts, field, value)
            case entries.HISTORIES:
                key: book.Key | None = None if field == entries.POPULATION else entries.texts_of(field)
                self._core.lifecycle.history.put(key, entries.sizes_of(value))
            case entries.PLACEMENTS:
                self._hold(self._homes, field.decode(), entries.engines_of(value))
            case _ if section.startswith(entries.PREFIXES):
                if len(field) != entries.DIGEST_BYTES:
                    raise BadEntry(f"{len(field)} bytes are no digest")
                if self._num_rows >= MOST_ROWS:
                    raise BadEntry(f"more than {MOST_ROWS}")
                self._num_rows += 1
                self._rows.setdefault(section.removeprefix(entries.PREFIXES), []).append(field[:_WORD])
            case _:
                raise BadEntry("the section is none")

    @staticmethod
    def _hold(held: dict[Field, Value], field: Field, value: Value) -> None:
        if len(held) >= MOST_ENTRIES:
            raise BadEntry(f"more than {MOST_ENTRIES}")
        held[field] = value

    async def apply(self) -> None:
        """Take names and the places of programs into the core, except for names that it has."""
        versions = []
        for each in self._versions():
            versions.append(each)
            await asyncio.sleep(0)  # a long context takes milliseconds
        for key, version in self._fitting(versions):
            self._core.names.put(key, version)
        for (program_id, key), last in self._done.items():
            if self._core.names.done(program_id, key) is None:
                self._core.names.remember(program_id, key, last)
        self._core.placing.homes = self._homes
        log.info("the directory had %d names, and the places of %d programs", len(versions), len(self._homes))

    def finish(self) -> int:
        """Remember where rows were, and tell what was left out. Returns how many entries that were."""
        for engine_id, digests in self._rows.items():
            self._recalled.put(engine_id, np.sort(_words(b"".join(digests))))
        for section, count in self._bad.items():
            log.warning("the directory: %d entries of %r make no sense and are left out: %s", count, section,
                        self._why[section])  # fmt: skip
        log.info("the directory had %d rows of %d engines", self._num_rows, len(self._rows))
        return self._bad.total()

    def _versions(self) -> Iterator[tuple[Key, Version]]:
        for field, value in self._names.items():
            try:
                key = Key(*entries.texts_of(field))
                if self._core.names.find(key) is None:
                    yield key, self._version(key, field, entries.named_of(value))
            except (BadEntry, UnicodeError) as e:
                self._drop(entries.NAMES, str(e))

    def _version(self, key: Key, field: bytes, told: Named) -> Version:
        if field not in self._contexts:
            raise BadEntry("its tokens are missing")
        return entries.version_of(key, told, self._contexts[field])

    def _fitting(self, versions: list[tuple[Key, Version]]) -> list[tuple[Key, Version]]:
        """Return the versions that fit their tenant's budget, the longest unused first; those that don't are older."""
        tokens: Counter[str] = Counter()
        names: Counter[str] = Counter()
        for key, version in self._core.names:
            tokens[key.tenant] += len(version.tokens)
            names[key.tenant] += 1
        kept = []
        unknown = [each for each in versions if self._core.names.find(each[0]) is None]
        for key, version in sorted(unknown, key=lambda each: -each[1].used_s):
            fits = tokens[key.tenant] + len(version.tokens) <= self._core.settings.name_tokens
            if fits and names[key.tenant] < MAX_NAMES:
                tokens[key.tenant] += len(version.tokens)
                names[key.tenant] += 1
                kept.append((key, version))
        return kept[::-1]

    def _drop(self, section: str, why: str) -> None:
        section = section[: entries.MAX_TEXT]
        if section not in self._bad and len(self._bad) >= entries.MAX_TEXT:
            section = "others"
        self._bad[section] += 1
        self._why.setdefault(section, why)


def _words(data: bytes) -> Rows:
    return np.frombuffer(data, "<u8").astype(np.uint64, copy=False)


def _leading(rows: Rows, asked: Rows) -> int:
    """Return how many of the first words that are asked for are among the sorted ones."""
    if not len(rows) or not len(asked):
        return 0
    at = np.minimum(np.searchsorted(rows, asked), len(rows) - 1)
    there = rows[at] == asked
    return len(asked) if there.all() else int(np.argmin(there))
