"""What the directory should hold: reads control's memory, and notes what has changed since the last look.

Nothing is copied when something changes: only its name is noted, once. If more has changed than is noted, or nobody
knows what the store has, everything is written anew from control's memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from tartlet_control.core.core import Core
from tartlet_control.directory import entries
from tartlet_control.directory.store import Entry
from tartlet_control.order import book
from tartlet_control.sharing.names import Key, Version
from tartlet_control.tables.engines import EngineState

MOST_NOTED: Final = 1 << 16
"""Changes of one section that are noted between two looks."""
MOST_OF_PART: Final = 1024
MOST_BYTES: Final = 1 << 20
"""A part with so many entries, or bytes of values, is written before others are read."""
Part = tuple[str, list[Entry]]
"""A section and some of its entries."""


class Changes:
    """The names of what has changed, each once."""

    __slots__ = ("_names", "overflown")

    def __init__(self) -> None:
        self._names: set[Any] = set()
        self.overflown = False
        """Whether more has changed than is noted."""

    def __len__(self) -> int:
        return len(self._names)

    def add(self, name: Any) -> None:
        """Note a change."""
        if len(self._names) < MOST_NOTED:
            self._names.add(name)
        else:
            self.overflown = True

    def take(self) -> list[Any]:
        """Return what is noted, and forget it."""
        names, self._names, self.overflown = list(self._names), set(), False
        return names


class Mirror:
    """Knows what of a core goes into the directory."""

    def __init__(self, core: Core) -> None:
        """Note what changes in the core from now on."""
        self._core = core
        self._history = core.lifecycle.history
        self._names, self._done = Changes(), Changes()
        self._histories, self._programs = Changes(), Changes()
        self._rows: dict[EngineState, Changes] = {}
        self._contexts: dict[Key, bytes] = {}
        """The digest of the tokens that were written last for each name."""
        core.names.on_change, core.names.on_done = self._on_name, self._on_done
        self._history.on_change = self._histories.add

    def _on_name(self, key: Key, _: Version | None) -> None:
        self._names.add(key)

    def _on_done(self, program_id: str, key: Key) -> None:
        self._done.add((program_id, key))

    def _all(self) -> tuple[Changes, ...]:
        return self._names, self._done, self._histories, self._programs, *self._rows.values()

    @property
    def changed(self) -> bool:
        """Whether anything is noted."""
        return any(self._all())

    @property
    def overflown(self) -> bool:
        """Whether more has changed than is noted, so that everything must be written anew."""
        return any(changes.overflown for changes in self._all())

    def look(self) -> list[str]:
        """Look which engines have come and gone. Returns the sections that nothing belongs into any more."""
        engines = self._core.engines
        gone = [engine for engine in self._rows if engines.get(engine.id) is not engine]
        for engine in gone:
            del self._rows[engine]
        for engine in [engine for engine in engines.values() if engine not in self._rows]:
            self._join(engine)
        return [entries.PREFIXES + engine.id for engine in gone]

    def _join(self, engine: EngineState) -> None:
        changes = self._rows[engine] = Changes()
        engine.prefixes.on_change = changes.add
        engine.on_seat = self._programs.add
        changes.overflown = len(engine.prefixes) > MOST_NOTED
        if not changes.overflown:
            for digest in engine.prefixes:
                changes.add(digest)
        for program_id in engine.program_ids:
            self._programs.add(program_id)

    def take(self) -> Iterator[Part]:
        """Yield the entries that have changed, in parts; forget that they have. Call `look` before."""
        names = self._names.take()
        yield from _parts(entries.CONTEXTS, filter(None, map(self._context, names)))
        yield from _parts(entries.NAMES, map(self._name, names))
        yield from _parts(entries.DONE, map(self._last, self._done.take()))
        yield from _parts(entries.HISTORIES, map(self._sizes, self._histories.take()))
        yield from _parts(entries.PLACEMENTS, map(self._placement, self._programs.take()))
        for engine, changes in list(self._rows.items()):
            yield from _parts(entries.PREFIXES + engine.id, _rows(engine, changes.take()))

    def everything(self) -> Iterator[Part]:
        """Yield all entries, in parts. Whatever changes meanwhile is noted."""
        self.look()
        core = self._core
        for changes in self._all():
            changes.take()
        self._contexts.clear()
        names, done = [key for key, _ in core.names], list(core.names.all_done())
        keys: list[book.Key | None] = [None, *self._history.keys]
        programs = [program_id for engine in core.engines.values() for program_id in engine.program_ids]
        yield from _parts(entries.CONTEXTS, filter(None, map(self._context, names)))
        yield from _parts(entries.NAMES, map(self._name, names))
        yield from _parts(entries.DONE, map(self._last, done))
        yield from _parts(entries.HISTORIES, map(self._sizes, keys))
        yield from _parts(entries.PLACEMENTS, map(self._placement, programs))
        for engine in list(self._rows):
            yield from _parts(entries.PREFIXES + engine.id, _rows(engine, list(engine.prefixes)))

    # ---- entries ----------------------------------------------------------------------------------------------------

    def _name(self, key: Key) -> Entry:
        version = self._core.names.find(key)
        return entries.texts_field(key), None if version is None else entries.named(version)

    def _last(self, of: tuple[str, Key]) -> Entry:
        """Return the entry of a program's last command on a name."""
        program_id, key = of
        last = self._core.names.done(program_id, key)
        return entries.texts_field((program_id, *key)), None if last is None else entries.done(last)

    def _context(self, key: Key) -> Entry | None:
        """Return the entry of a name's tokens; None if the store has it."""
        version = self._core.names.find(key)
        if version is None:
            self._contexts.pop(key, None)
            return entries.texts_field(key), None
        if self._contexts.get(key) == version.digest:
            return None
        self._contexts[key] = version.digest
        return entries.texts_field(key), entries.context(version)

    def _sizes(self, key: book.Key | None) -> Entry:
        known = self._history.known(key)
        return entries.history_field(key), None if known is None else entries.sizes(known)

    def _placement(self, program_id: str) -> Entry:
        program = self._core.lifecycle.programs.get(program_id)
        places = () if program is None else program.places.values()
        of_models = {p.model.spec.model_digest: p.engine.id for p in places if p.engine is not None}
        field = program_id.encode("utf-8", "surrogatepass")
        return field, entries.engines(of_models) if of_models else None


def _rows(engine: EngineState, digests: list[bytes]) -> Iterator[Entry]:
    held = engine.prefixes
    return ((digest, b"" if digest in held else None) for digest in digests)


def _parts(section: str, changed: Iterable[Entry]) -> Iterator[Part]:
    part: list[Entry] = []
    size = 0
    for entry in changed:
        part.append(entry)
        size += len(entry[1] or b"")
        if len(part) >= MOST_OF_PART or size >= MOST_BYTES:
            yield section, part
            part, size = [], 0
    if part:
        yield section, part
