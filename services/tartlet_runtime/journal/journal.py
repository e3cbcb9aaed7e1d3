"""The journal: everything that a guest was told, which determines what it asks for.

A file is a header (JSON, then the program's source) and one record a delivery: the guest's clock, a running digest of
its commands so far, and the delivery's bytes as they were. Records carry a CRC, so a torn tail is recognised and
ignored. Records are buffered until `flush`, which the driver calls before anything that follows from them leaves the
process: one `write` a program and turn, no fsync (the journal outlives this process, not a power cut). If journals have
more than `BUFFERED_BYTES` to write together, the journal that adds to them is written at once.

Files are slots that are written over: making and unlinking one for each of 896 launches would cost more than the
launches (as would truncating them). A record's CRC starts from its header's, so what an earlier program left behind
the end never counts. `Journals.leftovers` names what a killed runtime left.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import Any

from tartlet_common.config.paths import make_private
from tartlet_common.errors.registry import DiskFull, InvalidSource, JournalFull, Overloaded
from tartlet_runtime.journal.space import BUFFERED_BYTES, Space

MAGIC = b"TRTJ"
VERSION = 1
DIGEST_BYTES = 8
_HEAD = Struct("<4sHHII")  # magic, version, reserved, JSON bytes, source bytes; then both, then CRC-32 of all
_RECORD = Struct("<IIQ8s")  # CRC-32 of the rest, delivery bytes, clock in ns since the start, digest; then the delivery
_CRC = Struct("<I")
_to_json = json.JSONEncoder(separators=(",", ":")).encode
_BIG_SLOT_BYTES = 1 << 20  # a larger one gives its space back
_SHARED_FIELDS = ("language", "filename", "args", "component", "name", "tenant", "model", "limits")
MAX_KEPT = 1000
"""Journals kept of programs that failed (or of all, if so configured); the oldest go first."""


@dataclass(frozen=True, slots=True)
class JournalHeader:
    """A program's identity: with the journal's records it determines every command."""

    program_id: str
    language: int  # programs_pb2.Source.Language
    filename: str
    args: tuple[str, ...]
    seed: bytes
    start_ns: int  # the guest's clock at its start, nanoseconds since the epoch
    component: str  # digest of the Python component and the engine's flags; "" for native programs
    source: bytes = b""
    name: str = ""
    tenant: str = ""
    model: str = ""
    limits: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the header's bytes."""
        fields = {name: getattr(self, name) for name in _SHARED_FIELDS}
        return encode_header(self.program_id, self.seed, self.start_ns, _to_json(fields), self.source)

    @property
    def component_digest(self) -> str:
        """What `component` starts with: the digest of the Python component or of the module."""
        return self.component.partition("-")[0]


@lru_cache(maxsize=2)  # a text may have 6 MiB
def shared_text(*fields: Any) -> str:
    """Return the JSON of the fields that headers of programs launched alike have in common.

    Kept for the last two kinds of launches: making the JSON anew takes 19 us, 15% of a launch of core Wasm.

    Args:
        fields: those of `JournalHeader` from `language` on (without `seed`, `start_ns` and `source`), in the order of
            `_SHARED_FIELDS`; the limits as a dataclass.
    """
    *texts, limits = fields
    return _to_json(dict(zip(_SHARED_FIELDS, (*texts, asdict(limits)), strict=True)))


def encode_header(program_id: str, seed: bytes, start_ns: int, shared_text: str, source: bytes) -> bytes:
    """Encode a header from the program's own fields and those that it shares (`shared_text`)."""
    own = f'{{"program_id":"{program_id}","seed":"{seed.hex()}","start_ns":{start_ns},'
    text = (own + shared_text[1:]).encode()
    data = _HEAD.pack(MAGIC, VERSION, 0, len(text), len(source)) + text + source
    return data + _CRC.pack(zlib.crc32(data))


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """One delivery: at `clock_ns` after the start, when `digest` was the digest of the commands so far."""

    clock_ns: int
    digest: bytes
    delivery: bytes


class CommandDigest:
    """Running digest of a guest's submissions.

    Example:
        >>> a, b = CommandDigest(), CommandDigest()
        >>> a.add(b"x"); a.value() == b.value()
        False
    """

    __slots__ = ("_hash",)

    def __init__(self) -> None:
        """Start with a digest of nothing."""
        self._hash = blake2b(digest_size=DIGEST_BYTES)

    def add(self, submission: bytes) -> None:
        """Take in one submission."""
        self._hash.update(submission)

    def value(self) -> bytes:
        """Return the digest so far, 8 bytes."""
        return self._hash.digest()


class Journal:
    """The journal of one running program."""

    __slots__ = (
        "_at",
        "_bytes",
        "_crc",
        "_fd",
        "_limit_bytes",
        "_path",
        "_pending",
        "_pending_bytes",
        "_space",
        "digest",
    )

    def __init__(self, fd: int, path: Path, header: bytes, limit_bytes: int, space: Space) -> None:
        """Write over the file `fd` at `path` from its start; the journal owns neither."""
        self._space = space
        self._fd = fd
        self._path = path
        self._limit_bytes = limit_bytes
        self._pending = [header]
        self._pending_bytes = len(header)
        space.pending_bytes += len(header)
        self._bytes = len(header)
        self._at = 0  # bytes written
        (self._crc,) = _CRC.unpack_from(header, len(header) - _CRC.size)
        self.digest = CommandDigest()

    @property
    def counted_bytes(self) -> int:
        """Bytes that it has taken of the space: written, or about to be."""
        return self._bytes

    @property
    def written_bytes(self) -> int:
        """Length of the journal in its file."""
        return self._at

    @property
    def pending(self) -> bool:
        """Whether there is something to flush."""
        return bool(self._pending)

    def discard(self) -> None:
        """Forget what is pending."""
        self._pending.clear()
        self._space.pending_bytes -= self._pending_bytes
        self._pending_bytes = 0

    def append(self, clock_ns: int, delivery: bytes) -> None:
        """Record a delivery before the guest sees it.

        Raises:
            JournalFull: it doesn't fit the program's limit, or the space of all journals.
            DiskFull: the journals have much to write, and this one's file can't be written.
        """
        size = len(delivery)
        record_bytes = _RECORD.size + size
        if self._bytes + record_bytes > self._limit_bytes:
            raise JournalFull(limit=self._limit_bytes)
        self._space.add(record_bytes, self._bytes + record_bytes)
        self._bytes += record_bytes
        body = _RECORD.pack(0, size, clock_ns, self.digest.value())[4:] + delivery
        self._pending.append(_CRC.pack(zlib.crc32(body, self._crc)) + body)
        self._pending_bytes += record_bytes
        self._space.pending_bytes += record_bytes
        if self._space.pending_bytes > BUFFERED_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is pending.

        Raises:
            DiskFull: the file can't be written.
        """
        pending = self._pending
        if not pending:
            return
        data = pending[0] if len(pending) == 1 else b"".join(pending)
        self.discard()
        try:
            while data:
                written = os.pwrite(self._fd, data, self._at)
                self._at += written
                data = data[written:]
        except OSError as e:
            raise DiskFull(path=self._path.name, detail=e.strerror) from e


def read_journal(path: Path) -> tuple[JournalHeader, list[JournalRecord]]:
    """Header and intact records of a journal file; a torn tail is left out.

    Raises:
        InvalidSource: there is no intact header of this version.
    """
    header, records, _ = _parse(path)
    return header, records


def _parse(path: Path) -> tuple[JournalHeader, list[JournalRecord], int]:
    """`read_journal`, and how many bytes of the file they are: behind them is what a slot held before."""
    data = path.read_bytes()
    if len(data) < _HEAD.size:
        raise InvalidSource(detail=f"{path.name} holds no journal")
    magic, version, _, text_bytes, source_bytes = _HEAD.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise InvalidSource(detail=f"{path.name} is no journal of version {VERSION}")
    source_at = _HEAD.size + text_bytes
    end = source_at + source_bytes
    if len(data) < end + _CRC.size or _CRC.unpack_from(data, end)[0] != zlib.crc32(data[:end]):
        raise InvalidSource(detail=f"the header of {path.name} is torn")
    fields = json.loads(data[_HEAD.size : source_at])
    fields |= {"seed": bytes.fromhex(fields["seed"]), "args": tuple(fields["args"]), "source": data[source_at:end]}
    (crc,) = _CRC.unpack_from(data, end)
    records = list(_records(data, end + _CRC.size, crc))
    intact = end + _CRC.size + sum(_RECORD.size + len(record.delivery) for record in records)
    return JournalHeader(**fields), records, intact


def _records(data: bytes, at: int, header_crc: int) -> Iterator[JournalRecord]:
    while at + _RECORD.size <= len(data):
        crc, size, clock_ns, digest = _RECORD.unpack_from(data, at)
        end = at + _RECORD.size + size
        if end > len(data) or crc != zlib.crc32(data[at + _CRC.size : end], header_crc):
            return
        yield JournalRecord(clock_ns, digest, data[at + _RECORD.size : end])
        at = end


@dataclass(slots=True)
class _Slot:
    fd: int
    path: Path


class Journals:
    """The directory of a runtime's journals: slots in use, slots to write over, and journals that were kept."""

    def __init__(self, directory: Path, limit_bytes: int = 2 << 30) -> None:
        """Create `directory` (private); slots that a killed runtime left are kept as journals of their programs.

        All journals together take at most `limit_bytes` bytes of disk.

        Raises:
            PermissionDenied: somebody else owns the directory.
        """
        self._directory = make_private(directory)
        self._free: list[_Slot] = []
        self._used: dict[str, _Slot] = {}
        self._made = 0
        self.space = Space(limit_bytes, self._make_room)
        self._kept = sorted(directory.glob("*.journal"), key=lambda path: path.stat().st_mtime)
        self._kept_sizes = {path: path.stat().st_size for path in self._kept}
        self.space.used_bytes = sum(self._kept_sizes.values())
        self.leftovers = [kept for slot in sorted(directory.glob("slot-*")) if (kept := self._keep_leftover(slot))]

    def open(self, program_id: str, header: bytes, limit_bytes: int) -> Journal:
        """Open a journal for a new program; its header, encoded, is pending.

        Raises:
            JournalFull: the header alone doesn't fit the program's limit.
            Overloaded: the journals of running programs take all the space.
            DiskFull: no file can be made.
        """
        if len(header) > limit_bytes:
            raise JournalFull(limit=limit_bytes)
        space = self.space
        space.used_bytes += len(header)
        if space.used_bytes > space.limit_bytes:
            self._make_room()
            if space.used_bytes > space.limit_bytes:
                space.used_bytes -= len(header)
                raise Overloaded(what="the space of journals (journals_bytes)", limit=space.limit_bytes)
        try:
            slot = self._free.pop() if self._free else self._new_slot()
        except DiskFull:
            space.used_bytes -= len(header)
            raise
        self._used[program_id] = slot
        space.num_running += 1
        journal = Journal(slot.fd, slot.path, header, limit_bytes, space)
        if space.pending_bytes > BUFFERED_BYTES:  # a header holds a whole source
            try:
                journal.flush()
            except DiskFull:
                self.close(program_id, journal, keep=False)
                raise
        return journal

    def close(self, program_id: str, journal: Journal, *, keep: bool) -> None:
        """Rename an ended program's journal to `<program id>.journal`, or write over its slot."""
        slot = self._used.pop(program_id)
        self.space.num_running -= 1
        self.space.used_bytes -= journal.counted_bytes
        if keep:
            with contextlib.suppress(DiskFull, OSError):  # a full disk keeps what fits
                journal.flush()
                os.ftruncate(slot.fd, journal.written_bytes)
            os.close(slot.fd)
            slot.path.rename(self.path(program_id))
            self._keep(self.path(program_id), journal.written_bytes)
            journal.discard()
            return
        journal.discard()
        try:
            if journal.written_bytes:
                os.pwrite(slot.fd, bytes(len(MAGIC)), 0)
            if journal.written_bytes > _BIG_SLOT_BYTES:
                os.ftruncate(slot.fd, 0)
        except OSError:  # a full disk: give the file up, the next program gets another
            os.close(slot.fd)
            slot.path.unlink(missing_ok=True)
        else:
            self._free.append(slot)

    def _keep(self, path: Path, size: int) -> None:
        self._kept.append(path)
        self._kept_sizes[path] = size
        self.space.used_bytes += size
        while len(self._kept) > MAX_KEPT:
            self._drop_oldest()
        self._make_room()

    def _make_room(self) -> None:
        while self._kept and self.space.used_bytes > self.space.limit_bytes:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        path = self._kept.pop(0)
        self.space.used_bytes -= self._kept_sizes.pop(path)
        path.unlink(missing_ok=True)

    def path(self, program_id: str) -> Path:
        """Return the path of a kept journal."""
        return self._directory / f"{program_id}.journal"

    def close_all(self) -> None:
        """Delete empty slots as the runtime stops; slots in use stay for their programs."""
        for slot in self._free:
            os.close(slot.fd)
            slot.path.unlink(missing_ok=True)
        for slot in self._used.values():
            os.close(slot.fd)
        self._free, self._used = [], {}

    def _new_slot(self) -> _Slot:
        path = self._directory / f"slot-{os.getpid()}-{self._made}"
        self._made += 1
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError as e:
            raise DiskFull(path=path.name, detail=e.strerror) from e
        return _Slot(fd, path)

    def _keep_leftover(self, slot: Path) -> str | None:
        if slot.name.split("-")[1] != str(os.getpid()) and Path(f"/proc/{slot.name.split('-')[1]}").exists():
            return None  # another runtime's, which is alive
        try:
            header, _, intact = _parse(slot)
            os.truncate(slot, intact)
        except (InvalidSource, ValueError, KeyError, TypeError):
            slot.unlink(missing_ok=True)  # empty, or torn before its program did anything
            return None
        slot.rename(self.path(header.program_id))
        self._keep(self.path(header.program_id), intact)
        return header.program_id
