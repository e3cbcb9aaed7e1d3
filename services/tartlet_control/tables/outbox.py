"""What waits to be sent to one runtime: packed deliveries and the odd notice, already cut into frames that fit."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tartlet_common.abi import RECORD, Event, Flag
from tartlet_common.errors.registry import TartletError

_ROW: Final = struct.Struct("<HH7I")
_HANDLE: Final = struct.Struct("<I")
_CHUNK_BYTES: Final = 1 << 20
HARD_LIMIT_BYTES: Final = 256 << 20
"""A runtime that leaves more unread is cut off: its programs' limits should have stopped them long before."""

RESULT: Final = int(Event.RESULT)
SKIPPED: Final = int(Event.SKIPPED)
CANCELLED: Final = int(Event.CANCELLED)
FAILURE: Final = int(Event.FAILURE)
_AWAIT: Final = int(Flag.AWAIT)


class Chunk:
    """Deliveries of one frame: columns as in `Commands` of control.proto."""

    __slots__ = ("handles", "payload", "records")

    def __init__(self) -> None:
        self.handles = bytearray()
        self.records = bytearray()
        self.payload = bytearray()


@dataclass(frozen=True, slots=True)
class Settled:
    """Everything a program held is free; what it used."""

    handle: int
    poisoned: TartletError | None
    peak_pages: int
    sampled_tokens: int
    input_tokens: int
    commands: int


@dataclass(slots=True)
class Notices:
    """What isn't a delivery: rare, and sent after the deliveries before it."""

    started: list[tuple[int, TartletError | None, str]] = field(default_factory=list)  # handle, error, existing id
    kills: list[tuple[int, TartletError]] = field(default_factory=list)
    settled: list[Settled] = field(default_factory=list)
    models_changed: bool = False

    def __bool__(self) -> bool:
        return bool(self.started or self.kills or self.settled or self.models_changed)


class Outbox:
    """Collects; a writer takes everything at once, so a step's answers leave in one frame."""

    __slots__ = ("_chunks", "_last", "_size", "notices")

    def __init__(self) -> None:
        self._last = Chunk()
        self._chunks = [self._last]
        self._size = 0
        self.notices = Notices()

    def __bool__(self) -> bool:
        return bool(self._last.records) or len(self._chunks) > 1 or bool(self.notices)

    @property
    def size(self) -> int:
        """Bytes waiting."""
        return self._size + len(self._last.records) + len(self._last.payload)

    def deliver(  # noqa: PLR0913, PLR0917 - one argument a field of the record; positional for speed
        self,
        handle: int,
        event: int,
        flags: int,
        ticket: int,
        queue: int,
        a: int = 0,
        b: int = 0,
        c: int = 0,
        payload: bytes = b"",
    ) -> None:
        """Append one record for the program `handle`."""
        chunk = self._last
        if len(chunk.records) + len(chunk.payload) + len(payload) > _CHUNK_BYTES and chunk.records:
            self._cut()  # before it: with the largest answer behind it, a full chunk would pass a message's limit
            chunk = self._last
        chunk.handles += _HANDLE.pack(handle)
        chunk.records += _ROW.pack(event, flags, ticket, queue, a, b, c, len(chunk.payload), len(payload))
        if payload:
            chunk.payload += payload

    def fail(self, handle: int, ticket: int, queue: int, error: TartletError, *, answers: bool) -> None:
        """A failure record: the answer to an awaited ticket, or the naming of the first failed one."""
        self.deliver(handle, FAILURE, _AWAIT if answers else 0, ticket, queue, error.number, 0, 0, error.to_json())

    def take(self) -> tuple[list[Chunk], Notices]:
        """Everything that waits, in order; the outbox is empty again."""
        chunks = [c for c in self._chunks if c.records]
        notices = self.notices
        self._last = Chunk()
        self._chunks = [self._last]
        self._size = 0
        self.notices = Notices()
        return chunks, notices

    def keep(self, handles: set[int]) -> None:
        """Drop what is for other programs than these: their handles mean nothing on the runtime's new stream."""
        chunks, notices = self.take()
        for chunk in chunks:
            kept = np.isin(np.frombuffer(chunk.handles, "<u4"), list(handles))
            chunk.records = bytearray(np.frombuffer(chunk.records, RECORD)[kept].tobytes())
            chunk.handles = bytearray(np.frombuffer(chunk.handles, "<u4")[kept].tobytes())
        self._chunks = [*chunks, self._last]
        self._size = sum(len(c.records) + len(c.payload) for c in chunks)
        self.notices.kills = [k for k in notices.kills if k[0] in handles]

    def _cut(self) -> None:
        self._size += len(self._last.records) + len(self._last.payload)
        self._last = Chunk()
        self._chunks.append(self._last)
