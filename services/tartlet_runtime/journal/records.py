"""What a journal holds: a header that identifies the program, and one record for each thing that the program was told.

A journal is a header (JSON, then the program's source) and records. A record has the guest's clock, a running digest of
its commands so far, and the bytes of a delivery as they were. The CRC of a record starts from that of the header, so a
torn tail, or what an earlier program left in the same file, is recognised and ignored.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

from tartlet_common.errors.registry import InvalidSource
from tartlet_protos import common_pb2

MAGIC = b"TRTJ"
VERSION = 2
DIGEST_BYTES = 8
_HEAD = Struct("<4sHHII")  # magic, version, reserved, JSON bytes, source bytes; then both, then CRC-32 of all
_RECORD = Struct("<IIQ8sIIB")  # CRC-32 of the rest, and the fields of `JournalRecord`; then the data
_CRC = Struct("<I")
RECORD_BYTES = _RECORD.size
"""Bytes of a record beside its data."""
_to_json = json.JSONEncoder(separators=(",", ":")).encode
_SHARED_FIELDS = (
    "language", "filename", "args", "component", "name", "tenant", "model", "pool", "degrades", "tied", "session",
    "parent_session", "ends_session", "parent", "detached", "grants", "limits",
)  # fmt: skip


class Kind(IntEnum):
    """What a record tells."""

    DELIVERY = 0
    """The guest was given this delivery."""
    MESSAGE = 1
    """A client's message was accepted: the key of its sending (one byte of length, then the key), then the message."""
    END = 2
    """The program has ended: JSON with its result, or with the number and the fields of its error."""
    KEYS = 3
    """Keys of sendings that an earlier run of the program took: of each, one byte of length, then the key."""


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
    pool: str = ""
    degrades: bool = False
    tied: bool = False  # the program ends when its client goes away
    session: str = ""  # the runs of a session count as one program
    parent_session: str = ""
    ends_session: bool = False
    idempotency_key: str = ""
    parent: str = ""  # the id of the program that has started it
    detached: bool = False
    grants: list[dict[str, Any]] = field(default_factory=list)  # what it may reach
    since_offset: int = 0  # events of its output when this journal began
    lag_ns: int = 0  # how far the guest's clock is behind the wall clock

    def encode(self) -> bytes:
        """Return the header's bytes."""
        fields = {name: getattr(self, name) for name in _SHARED_FIELDS}
        return encode_header(
            self.program_id,
            self.seed,
            self.start_ns,
            _to_json(fields),
            self.source,
            self.idempotency_key,
            self.since_offset,
            self.lag_ns,
        )

    @property
    def can_run_again(self) -> bool:
        """Whether a runtime can run the program again: native programs it can't."""
        return self.language != common_pb2.Source.NATIVE

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
            `_SHARED_FIELDS`; the grants and the limits as dataclasses.
    """
    *texts, grants, limits = fields
    told = (*texts, [grant.to_json() for grant in grants], asdict(limits))
    return _to_json(dict(zip(_SHARED_FIELDS, told, strict=True)))


def encode_header(
    program_id: str,
    seed: bytes,
    start_ns: int,
    shared_text: str,
    source: bytes,
    idempotency_key: str = "",
    since_offset: int = 0,
    lag_ns: int = 0,
) -> bytes:
    """Encode a header from the program's own fields and those that it shares (`shared_text`)."""
    own = f'{{"program_id":"{program_id}","seed":"{seed.hex()}","start_ns":{start_ns},'
    if idempotency_key:
        own += f'"idempotency_key":{_to_json(idempotency_key)},'
    if since_offset:
        own += f'"since_offset":{since_offset},'
    if lag_ns:
        own += f'"lag_ns":{lag_ns},'
    text = (own + shared_text[1:]).encode()
    data = _HEAD.pack(MAGIC, VERSION, 0, len(text), len(source)) + text + source
    return data + _CRC.pack(zlib.crc32(data))


def crc_of(header: bytes) -> int:
    """Return the CRC of an encoded header, from which the CRCs of its records start."""
    (crc,) = _CRC.unpack_from(header, len(header) - _CRC.size)
    return int(crc)


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """One thing that the program was told, at `clock_ns` after its start."""

    clock_ns: int
    digest: bytes
    """Digest of the program's commands so far."""
    delivery: bytes
    """The data: a delivery, or what `kind` says."""
    from_control: int = 0
    """How many of control's records the guest had been given, this delivery's included."""
    read_to: int = 0
    """The offset up to which clients had read the program's output."""
    kind: int = Kind.DELIVERY


def encode_record(
    header_crc: int, clock_ns: int, digest: bytes, data: bytes, from_control: int, read_to: int, kind: int
) -> bytes:
    """Encode a record of the journal whose header has `header_crc`."""
    body = _RECORD.pack(0, len(data), clock_ns, digest, from_control, read_to, kind)[4:] + data
    return _CRC.pack(zlib.crc32(body, header_crc)) + body


def pack_keys(keys: Iterable[bytes]) -> bytes:
    """Return the data of a record of `Kind.KEYS`.

    Args:
        keys: of at most 255 bytes each.

    Example:
        >>> unpack_keys(pack_keys([b"k1", b"other"]))
        [b'k1', b'other']
    """
    return b"".join(bytes([len(key)]) + key for key in keys)


def unpack_keys(data: bytes) -> list[bytes]:
    """Return the keys in a record of `Kind.KEYS`, in order."""
    keys, at = [], 0
    while at < len(data):
        end = at + 1 + data[at]
        keys.append(data[at + 1 : end])
        at = end
    return keys


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


class ParsedJournal(NamedTuple):
    """An intact journal."""

    header: JournalHeader
    records: list[JournalRecord]
    size: int
    """Its length in bytes. What follows is torn, or left of an earlier program."""
    header_bytes: int
    """Length of the encoded header."""

    @property
    def is_live(self) -> bool:
        """Whether the program can be run again and has not ended."""
        return self.header.can_run_again and (not self.records or self.records[-1].kind != Kind.END)


def read_journal(path: Path) -> tuple[JournalHeader, list[JournalRecord]]:
    """Header and intact records of a journal file; a torn tail is left out.

    Raises:
        InvalidSource: there is no intact header of this version.
    """
    return parse_journal(path.read_bytes(), path.name)[:2]


def parse_journal(data: bytes, name: str) -> ParsedJournal:
    """Parse a journal's bytes, as far as they are intact. `name` is for errors.

    Raises:
        InvalidSource: there is no intact header of this version.
    """
    header, header_bytes = read_header(data, name)
    (crc,) = _CRC.unpack_from(data, header_bytes - _CRC.size)
    records = list(_records(data, header_bytes, crc))
    intact = header_bytes + sum(_RECORD.size + len(record.delivery) for record in records)
    return ParsedJournal(header, records, intact, header_bytes)


def read_header(data: bytes, name: str) -> tuple[JournalHeader, int]:
    """Parse a journal's header. Returns it with its length in bytes. `name` is for errors.

    Raises:
        InvalidSource: there is no intact header of this version.
    """
    if len(data) < _HEAD.size:
        raise InvalidSource(detail=f"{name} holds no journal")
    magic, version, _, text_bytes, source_bytes = _HEAD.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise InvalidSource(detail=f"{name} is no journal of version {VERSION}")
    source_at = _HEAD.size + text_bytes
    end = source_at + source_bytes
    if len(data) < end + _CRC.size or _CRC.unpack_from(data, end)[0] != zlib.crc32(data[:end]):
        raise InvalidSource(detail=f"the header of {name} is torn")
    fields = json.loads(data[_HEAD.size : source_at])
    fields |= {"seed": bytes.fromhex(fields["seed"]), "args": tuple(fields["args"]), "source": data[source_at:end]}
    return JournalHeader(**fields), end + _CRC.size


def last_kind(data: bytes, at: int) -> int | None:
    """Return the kind of the last record behind `at`, where a record begins, or None if there is none.

    Checks no sums: use it for bytes that a store keeps whole.
    """
    kind: int | None = None
    while at + _RECORD.size <= len(data):
        _, size, *_, kind = _RECORD.unpack_from(data, at)
        at += _RECORD.size + size
    return kind


def _records(data: bytes, at: int, header_crc: int) -> Iterator[JournalRecord]:
    while at + _RECORD.size <= len(data):
        crc, size, clock_ns, digest, from_control, read_to, kind = _RECORD.unpack_from(data, at)
        end = at + _RECORD.size + size
        if end > len(data) or crc != zlib.crc32(data[at + _CRC.size : end], header_crc):
            return
        yield JournalRecord(clock_ns, digest, data[at + _RECORD.size : end], from_control, read_to, kind)
        at = end
