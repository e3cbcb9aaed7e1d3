"""The catalogue of inferlets by tenant and name, in memory and, with a directory, on disk."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from tartlet_common.capabilities import ENTRY, Grant
from tartlet_common.durability import check_durability
from tartlet_common.errors.registry import (
    DiskFull,
    InvalidArgument,
    InvalidSource,
    Overloaded,
    SourceTooLarge,
    TartletError,
    UnknownInferlet,
)
from tartlet_protos import common_pb2, control_pb2

log = logging.getLogger("tartlet.control")

SOURCE_BYTES: Final = 16 << 20
"""Largest source. A source that doesn't fit a message is uploaded before it is put, and fetched by its digest."""
STORE_BYTES: Final = 512 << 20
"""Limit of all sources together."""
MAX_ENTRIES: Final = 20_000
DESCRIPTION_BYTES: Final = 16 << 10
"""Characters of the longest description. The other texts of an entry are names."""
_NAME_BYTES: Final = 1024
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
_SUFFIX: Final = ".inferlet"


class Catalogue:
    """Entries by tenant and name, and their sources by digest.

    On disk each entry is one file (a serialised `CatalogueEntry`), replaced atomically; a file that can't be read is
    left alone and logged, so one bad disk block doesn't take the others down.
    """

    def __init__(self, directory: Path | None = None) -> None:
        """Load the entries of the directory.

        Raises:
            DiskFull: it can't be made.
        """
        self._directory = directory
        self._entries: dict[tuple[str, str], control_pb2.CatalogueEntry] = {}
        self._source_bytes = 0  # of all entries
        if directory is not None:
            try:
                directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            except OSError as e:
                raise DiskFull(path=str(directory), detail=str(e)) from e
            self._load(directory)

    @property
    def on_disk(self) -> bool:
        """Whether a change waits for a disk."""
        return self._directory is not None

    def put(self, entry: control_pb2.CatalogueEntry) -> str:
        """Add or replace an entry. Returns the digest of its source.

        Raises:
            InvalidSource, SourceTooLarge, InvalidArgument: the entry is not acceptable.
            Overloaded: the catalogue is full.
            DiskFull: it couldn't be written; the catalogue is unchanged.
        """
        return self.keep(self.prepare(entry))

    def prepare(self, entry: control_pb2.CatalogueEntry) -> control_pb2.CatalogueEntry:
        """Do the slow part of `put`, mainly writing. Another thread may do it while nothing else changes entries."""
        digest = self._check(entry)
        self._check_room(entry)
        kept = control_pb2.CatalogueEntry()
        kept.CopyFrom(entry)
        kept.source.digest = digest
        key = (kept.tenant, kept.name)
        if key not in self._entries and len(self._entries) >= MAX_ENTRIES:
            raise Overloaded(what="the catalogue", limit=MAX_ENTRIES)
        if self._directory is not None:
            _write(self._path(key), kept.SerializeToString())
        return kept

    def keep(self, entry: control_pb2.CatalogueEntry) -> str:
        """Make a prepared entry visible. Returns the digest of its source."""
        key = (entry.tenant, entry.name)
        self._source_bytes += self._growth(entry)
        self._entries[key] = entry
        return entry.source.digest

    def get(self, tenant: str, name: str, digest: str) -> control_pb2.CatalogueEntry:
        """Return an entry by name, or by its source's digest if `name` is empty.

        Raises:
            UnknownInferlet: there is none.
        """
        if name:
            entry = self._entries.get((tenant, name))
            if entry is not None and (not digest or entry.source.digest == digest):
                return entry
        elif digest:
            for (owner, _), entry in self._entries.items():
                if owner == tenant and entry.source.digest == digest:
                    return entry
        raise UnknownInferlet(inferlet=name or digest)

    def source(self, digest: str) -> bytes | None:
        """Return the source with this digest, of any tenant: a caller that knows a digest has seen the source."""
        for entry in self._entries.values():
            if entry.source.digest == digest:
                return entry.source.data
        return None

    def delete(self, tenant: str, name: str) -> None:
        """Remove an entry.

        Raises:
            UnknownInferlet: there is none.
            DiskFull: its file couldn't be removed.
        """
        if (tenant, name) not in self._entries:
            raise UnknownInferlet(inferlet=name)
        if self._directory is not None:
            try:
                self._path((tenant, name)).unlink(missing_ok=True)
            except OSError as e:
                raise DiskFull(path=str(self._directory), detail=str(e)) from e
        self._source_bytes -= len(self._entries.pop((tenant, name)).source.data)

    def list(self, tenant: str, after: str = "") -> Iterator[control_pb2.CatalogueEntry]:
        """Return a tenant's entries by name, those behind the name `after`, without the data of their sources."""
        for key in sorted(key for key in self._entries if key[0] == tenant and key[1] > after):
            yield without_data(self._entries[key])

    def _check(self, entry: control_pb2.CatalogueEntry) -> str:
        """Check an entry, and return the digest of its source."""
        source = entry.source
        if not _NAME.fullmatch(entry.name):
            raise InvalidSource(detail=f"the name {entry.name[:128]!r} must match {_NAME.pattern}")
        if source.language not in (common_pb2.Source.PYTHON, common_pb2.Source.WASM):
            raise InvalidSource(detail="the language must be PYTHON or WASM")
        if not source.data:
            raise InvalidSource(detail="it is empty")
        if len(source.data) > SOURCE_BYTES:
            raise SourceTooLarge(size=len(source.data), limit=SOURCE_BYTES)
        _check_texts(entry)
        actual = hashlib.sha256(source.data).hexdigest()
        if source.digest and source.digest != actual:
            raise InvalidSource(detail=f"its digest is {actual}, not {source.digest[:64]}")
        return actual

    def _check_room(self, entry: control_pb2.CatalogueEntry) -> None:
        if self._source_bytes + self._growth(entry) > STORE_BYTES:
            raise Overloaded(what="bytes of sources in the catalogue", limit=STORE_BYTES)

    def _growth(self, entry: control_pb2.CatalogueEntry) -> int:
        """Return how many bytes of sources the entry adds."""
        old = self._entries.get((entry.tenant, entry.name))
        return len(entry.source.data) - (len(old.source.data) if old is not None else 0)

    def _path(self, key: tuple[str, str]) -> Path:
        assert self._directory is not None
        return self._directory / (hashlib.sha256("\0".join(key).encode()).hexdigest() + _SUFFIX)

    def _load(self, directory: Path) -> None:
        for path in sorted(directory.glob(f"*{_SUFFIX}")):
            try:
                entry = control_pb2.CatalogueEntry.FromString(path.read_bytes())
                self._check(entry)
            except (OSError, DecodeError, TartletError) as e:
                log.error("catalogue entry %s can't be read: %s", path, e)  # noqa: TRY400 - it names what is wrong
                continue
            self._source_bytes += self._growth(entry)
            self._entries[(entry.tenant, entry.name)] = entry


def _check_texts(entry: control_pb2.CatalogueEntry) -> None:
    texts = {"description": entry.description, "tenant": entry.tenant, "model": entry.model}
    for what, text in (texts | {"filename": entry.source.filename}).items():
        limit = DESCRIPTION_BYTES if what == "description" else _NAME_BYTES
        if len(text.encode()) > limit:
            raise InvalidArgument(argument=what, detail=f"longer than {limit} bytes")
    check_durability(entry.durability)
    Grant.of(ENTRY, entry.capabilities.http, entry.capabilities.secrets)


def without_data(entry: control_pb2.CatalogueEntry) -> control_pb2.CatalogueEntry:
    """Return the entry with only the digest of its source."""
    source = entry.source
    short = control_pb2.CatalogueEntry(
        tenant=entry.tenant,
        name=entry.name,
        limits=entry.limits,
        model=entry.model,
        description=entry.description,
        pool=entry.pool,
        durability=entry.durability,
        capabilities=entry.capabilities if entry.HasField("capabilities") else None,
    )
    short.source.CopyFrom(common_pb2.Source(language=source.language, filename=source.filename, digest=source.digest))
    return short


def _write(path: Path, data: bytes) -> None:
    """Replace a file so that readers see either the old or the new file, and never a part."""
    temporary = ""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            temporary = file.name
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError as e:
        if temporary:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
        raise DiskFull(path=str(path), detail=str(e)) from e
