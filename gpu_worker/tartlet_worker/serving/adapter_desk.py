"""Gives an engine the LoRA adapters that a file lists, and follows the file while the engine runs.

An adapter that is on the list is loaded and offered. One that isn't any more is retired: control offers it to no
program, and says when none uses it. Only then the engine forgets it. A line or a directory that can't be used is
refused, which costs the other adapters nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

from tartlet_common.config.lists import Listing, adapters_listed
from tartlet_common.engine.spec import AdapterSpec
from tartlet_common.errors.registry import AdapterRefused, InvalidConfig, TartletError
from tartlet_common.rpc.error_proto import error_to_proto
from tartlet_protos import engine_pb2
from tartlet_worker.engine import Engine, LiveAdapters

log = logging.getLogger("tartlet.worker")

LOOK_EVERY_S: Final = 1.0
MAX_ADAPTERS: Final = 256
"""Adapters of an engine, retiring ones too: its Hello names them all."""
MAX_REFUSED: Final = 256
"""Refused adapters and lines that are told to control; the worker's log has all of them."""
_FILES: Final = ("adapter_config.json", "adapter_model.safetensors")
_DETAIL_CHARS: Final = 512
_LIVE_FIELDS: Final = ("live_adapters", "retiring")
"""Fields of the spec that a control of the last release doesn't know."""
_Source = tuple[Path, tuple[tuple[int, int, int], ...]]
"""A directory, and what tells whether its files have changed."""


class AdapterDesk:
    """The adapters of one engine. The event loop's thread calls everything."""

    def __init__(
        self,
        engine: Engine,
        file: Path | None,
        afterwards: Callable[[Callable[[], None]], None],
        told: Callable[[], None],
    ) -> None:
        """Begin without adapters.

        Args:
            engine: the engine; unless its adapters come and go, nothing is done.
            file: lists the adapters (`adapters_listed`).
            afterwards: has the engine's thread call something behind the steps that are queued.
            told: called when there is a report to take.
        """
        self._spec = engine.spec
        self._live: LiveAdapters | None = engine.adapters
        self._file = file
        self._afterwards, self._told = afterwards, told
        self._has: dict[int, AdapterSpec] = {}  # by number: what the engine has, or will have behind its queued steps
        self._offered: dict[str, AdapterSpec] = {}  # by name
        self._refused: dict[str, TartletError] = {}
        self._sources: dict[str, _Source] = {}  # what was last made of each name
        self._unread = ""  # why the file couldn't be read
        self._changed = False
        self._following: asyncio.Future[None] | None = None

    def spec_json(self) -> str:
        """Return the engine's spec with the adapters that it has now."""
        if self._live is None:
            return json.dumps({name: value for name, value in asdict(self._spec).items() if name not in _LIVE_FIELDS})
        return json.dumps(asdict(replace(self._spec, adapters=self._listed(), retiring=self._retiring())))

    def begin_link(self) -> None:
        """Tell a control that knows nothing of this engine what is refused."""
        self._changed = self._live is not None

    def report(self) -> engine_pb2.AdapterReport | None:
        """Return what has changed since the last call; None: nothing has."""
        if not self._changed:
            return None
        self._changed = False
        return engine_pb2.AdapterReport(
            adapters_json=_json(self._listed()),
            retiring_json=_json(self._retiring()),
            refused={name: error_to_proto(error) for name, error in islice(self._refused.items(), MAX_REFUSED)},
        )

    def unload(self, numbers: Iterable[int]) -> None:
        """Forget adapters that no program uses. One that is on the list again stays."""
        if self._live is None:
            return
        for number in numbers:
            gone = self._has.get(number)
            if gone is None or gone not in self._retiring():
                continue
            del self._has[number]
            self._afterwards(partial(self._live.remove, number))
            log.info("the adapter %s is unloaded", gone.name)
            for name in self._refused:  # there may be room now
                self._sources.pop(name, None)
            self._tell()

    async def begin(self) -> None:
        """Load what the file lists, and follow it from then on.

        Raises:
            InvalidConfig: the file can't be read.
        """
        if self._live is not None:
            await self.look()
            if self._unread:
                raise InvalidConfig(role="worker", detail=f"adapters_file: {self._unread}")
            self._following = asyncio.ensure_future(self._follow())

    async def end(self) -> None:
        """Follow the file no longer."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await self.look()
            except Exception:  # a bug costs this look, not the engine
                log.exception("the list of adapters can't be followed")

    async def look(self) -> None:
        """Do what the file says, if that is something else than before. A file that can't be read says nothing."""
        assert self._live is not None
        assert self._file is not None
        try:
            listing, sources = await asyncio.to_thread(_read, self._file)
        except OSError as error:
            if str(error) != self._unread:
                log.warning("the list of adapters stays as it is: %s", error)
            self._unread = str(error)
            return
        self._unread = ""
        faults = {name: AdapterRefused(path=str(self._file), detail=why) for name, why in listing.faults.items()}
        self._drop(listing, faults)
        for name, source in sources.items():
            if self._sources.get(name) != source:
                await self._take(self._live, name, source)

    def _drop(self, listing: Listing, faults: dict[str, AdapterRefused]) -> None:
        """Retire adapters that aren't listed any more, and forget refusals of such."""
        unlisted = self._offered.keys() - listing.directories.keys()
        for name in unlisted:
            del self._offered[name]
        kept = {name: error for name, error in self._refused.items() if name in listing.directories.keys() - faults}
        refused = kept | faults
        for name in self._sources.keys() - listing.directories.keys():
            del self._sources[name]
        if unlisted or refused.keys() != self._refused.keys():
            for name in faults.keys() - self._refused.keys():
                log.warning("adapter %s: %s", name, faults[name])
            self._refused = refused
            self._tell()

    async def _take(self, live: LiveAdapters, name: str, source: _Source) -> None:
        """Offer what a directory holds under a name. Until it can be read, the name stands for what it did before."""
        path, _ = source
        self._sources[name] = source
        try:
            if name not in self._offered:
                self._check_number(path, len(self._offered))
            checked = await asyncio.to_thread(live.check, name, path)
            number = checked.spec.number
            if number not in self._has:
                self._check_number(path, len(self._has))
                add = await asyncio.to_thread(live.load, checked)
                self._afterwards(add)
                self._has[number] = checked.spec
            elif self._has[number].digest != checked.spec.digest:
                detail = f"it has the same number as {self._has[number].name}: save one of them anew"
                raise AdapterRefused(path=str(path), detail=detail)
        except TartletError as error:
            fields = {key: str(value)[:_DETAIL_CHARS] for key, value in error.fields.items()}
            self._refused[name] = AdapterRefused(**fields) if isinstance(error, AdapterRefused) else error
            log.warning("adapter %s: %s", name, error)
        else:
            self._offered[name] = checked.spec
            self._refused.pop(name, None)
            log.info("the adapter %s is loaded", name)
        self._tell()

    @staticmethod
    def _check_number(path: Path, count: int) -> None:
        if count >= MAX_ADAPTERS:
            raise AdapterRefused(path=str(path), detail=f"an engine has at most {MAX_ADAPTERS} adapters")

    def _listed(self) -> tuple[AdapterSpec, ...]:
        return tuple(self._offered[name] for name in sorted(self._offered))

    def _retiring(self) -> tuple[AdapterSpec, ...]:
        offered = {adapter.number for adapter in self._offered.values()}
        return tuple(adapter for number, adapter in sorted(self._has.items()) if number not in offered)

    def _tell(self) -> None:
        self._changed = True
        self._told()


def _read(file: Path) -> tuple[Listing, dict[str, _Source]]:
    """Return what a file lists, and the state of each directory's files."""
    listing = adapters_listed(file.read_text(encoding="utf-8", errors="replace"), file.parent)
    return listing, {name: (path, _stamp(path)) for name, path in listing.directories.items()}


def _stamp(path: Path) -> tuple[tuple[int, int, int], ...]:
    """Return what changes with a directory's files."""
    found = []
    for file in _FILES:
        try:
            stat = (path / file).stat()
        except OSError:
            found.append((0, 0, 0))
        else:
            found.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(found)


def _json(adapters: Iterable[AdapterSpec]) -> str:
    told: list[dict[str, Any]] = [asdict(adapter) for adapter in adapters]
    return json.dumps(told)
