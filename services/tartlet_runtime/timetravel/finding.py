"""Finds journals: files, a directory of a runtime's journals, or the Redis that holds them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tartlet_common.bundles.project import bundle
from tartlet_common.config.load import load
from tartlet_common.config.paths import make_private
from tartlet_common.config.settings import RuntimeSettings
from tartlet_common.errors.registry import InvalidArgument, InvalidSource, TartletError, UnknownProgram
from tartlet_runtime.journal.records import ParsedJournal, parse_journal
from tartlet_runtime.journal.redis_client import make_client
from tartlet_runtime.journal.redis_store import RedisStore
from tartlet_runtime.journal.store import FIRST_EPOCH, Part, StoredJournal, Turn

SUFFIX = ".journal"
_URLS = ("redis://", "rediss://", "unix://")


@dataclass(frozen=True, slots=True)
class Found:
    """A journal, as far as it is intact."""

    data: bytes
    parsed: ParsedJournal


@dataclass(frozen=True, slots=True)
class Place:
    """Where a runtime keeps its journals: a directory, or a Redis."""

    directory: Path
    url: str = ""
    password_file: Path | None = None
    authority: Path | None = None
    kept_s: float = 600.0

    def __str__(self) -> str:
        """Return the place for messages."""
        return self.url or str(self.directory)


def place_of(journals: str | None) -> Place:
    """Return the place that the command line names; None: that of this machine's runtime, by its settings.

    Raises:
        InvalidConfig: a setting of the runtime is wrong.
    """
    settings = load(RuntimeSettings, "runtime", env=os.environ).settings
    url, directory = settings.journal_url, settings.journal_dir
    if journals is not None:
        url, directory = (journals, directory) if journals.startswith(_URLS) else ("", Path(journals))
    return Place(directory, url, settings.journal_password_file, settings.journal_authority, settings.ended_kept_s)


def find(run: str, place: Place) -> Found:
    """Find a journal by a file's path, by `URL#ID`, or by a program's id (or its beginning) in a place.

    Raises:
        UnknownProgram: there is no such journal.
        InvalidArgument: several ids begin so.
        InvalidSource: the file holds no journal.
        JournalUnavailable: Redis can't be reached.
    """
    url, mark, program_id = run.partition("#")
    if mark and url.startswith(_URLS):
        return _from_redis(program_id, Place(place.directory, url, place.password_file, place.authority))
    path = Path(run)
    if os.sep in run or run.endswith(SUFFIX) or path.is_file():
        return read(path)
    return _from_redis(run, place) if place.url else _from_directory(run, place.directory)


def read(path: Path) -> Found:
    """Read a journal from a file.

    Raises:
        InvalidSource: it can't be read, or holds no journal.
    """
    try:
        data = path.read_bytes()
    except OSError as e:
        raise InvalidSource(detail=f"{path}: {e.strerror}") from e
    return _parsed(data, path.name)


def source(path: Path) -> bytes:
    """Read a program: a file, or a directory as an archive.

    Raises:
        InvalidArgument: it can't be read.
        InvalidBundle, BundleTooLarge, NativePackage, PackagesMissing: the directory is refused.
    """
    if path.is_dir():
        return bundle(path)
    try:
        return path.read_bytes()
    except OSError as e:
        raise InvalidArgument(argument="FILE", detail=f"{path}: {e.strerror}") from e


def all_in(directory: Path) -> Iterator[tuple[Path, Found]]:
    """Yield every intact journal of a directory, by file: kept ones by name, then those of running programs."""
    for path in (*sorted(directory.glob(f"*{SUFFIX}")), *sorted(directory.glob("slot-*"))):
        with contextlib.suppress(InvalidSource):
            yield path, read(path)


def export(found: Found, target: Path) -> None:
    """Write a journal to a file that only this user can read, because a journal holds all that a program was told.

    Raises:
        InvalidArgument: the file can't be written, or exists.
    """
    try:
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(found.data)
    except OSError as e:
        raise InvalidArgument(argument="FILE", detail=f"{target}: {e.strerror}") from e


def store(found: Found, place: Place) -> None:
    """Put a journal into a place, unless that has it already.

    Raises:
        InvalidArgument: the place has another journal of the program.
        JournalUnavailable: Redis can't be reached.
    """
    program_id = found.parsed.header.program_id
    with contextlib.suppress(UnknownProgram):
        there = _from_redis(program_id, place) if place.url else _from_directory(program_id, place.directory)
        if there.data != found.data:
            raise InvalidArgument(argument="FILE", detail=f"{place} has another journal of program {program_id}")
        return
    if place.url:
        asyncio.run(_append(found, place))
    else:
        export(found, make_private(place.directory) / f"{program_id}{SUFFIX}")


def _parsed(data: bytes, name: str) -> Found:
    try:
        parsed = parse_journal(data, name)
    except (ValueError, KeyError, TypeError) as e:
        raise InvalidSource(detail=f"the header of {name} can't be read: {e}") from e
    return Found(data[: parsed.size], parsed)


def _from_directory(run: str, directory: Path) -> Found:
    kept = directory / f"{run}{SUFFIX}"
    if kept.is_file():
        return read(kept)
    found = {f.parsed.header.program_id: f for _, f in all_in(directory) if f.parsed.header.program_id.startswith(run)}
    if len(found) > 1 and run not in found:
        raise InvalidArgument(argument="RUN", detail=f"{len(found)} runs in {directory} begin with {run}")
    if not found or not run:
        raise UnknownProgram(program=f"{run} with a journal in {directory}")
    return found.get(run) or next(iter(found.values()))


def _from_redis(program_id: str, place: Place) -> Found:
    return _parsed(asyncio.run(_read(program_id, place)).data, f"the journal of {program_id}")


async def _read(program_id: str, place: Place) -> StoredJournal:
    async with contextlib.aclosing(make_client(place.url, place.password_file, place.authority)) as client:
        return await RedisStore(client, place.kept_s).read(program_id)


class _Imported:
    """Hears whether an imported journal is stored."""

    def __init__(self) -> None:
        self.done = asyncio.get_running_loop().create_future()

    def stored(self, turn: int) -> None:
        if not self.done.done():
            self.done.set_result(turn)

    def refused(self, program_id: str, error: TartletError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


async def _append(found: Found, place: Place) -> None:
    program_id = found.parsed.header.program_id
    async with contextlib.aclosing(make_client(place.url, place.password_file, place.authority)) as client:
        await client.ping()
        redis_store, heard = RedisStore(client, place.kept_s), _Imported()
        redis_store.listen(heard)
        redis_store.open(program_id)
        redis_store.append(Turn(1, (Part(program_id, FIRST_EPOCH, found.data, begins=True),)))
        running = asyncio.ensure_future(redis_store.run())
        try:
            await heard.done
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
