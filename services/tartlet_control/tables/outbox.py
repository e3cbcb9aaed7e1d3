"""The deliveries and notices that wait to be sent to one runtime, cut into frames that fit a message."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tartlet_common.abi import RECORD, RECORD_STRUCT, Event, Flag
from tartlet_common.errors.registry import TartletError
from tartlet_common.pauses import Pause
from tartlet_control.tables.answers import Answer, Answers

_HANDLE: Final = struct.Struct("<I")
_CHUNK_BYTES: Final = 1 << 20
HARD_LIMIT_BYTES: Final = 256 << 20
"""A runtime that leaves more unread is cut off. The limits of its programs should have stopped them long before."""

RESULT: Final = int(Event.RESULT)
SKIPPED: Final = int(Event.SKIPPED)
CANCELLED: Final = int(Event.CANCELLED)
FAILURE: Final = int(Event.FAILURE)
_AWAIT: Final = int(Flag.AWAIT)


class Chunk:
    """The deliveries of one frame, in columns as in `Commands` of control.proto."""

    __slots__ = ("handles", "payload", "records")

    def __init__(self) -> None:
        self.handles = bytearray()
        self.records = bytearray()
        self.payload = bytearray()


@dataclass(frozen=True, slots=True)
class Settled:
    """Tells that all that a program held is free, and what the program has used."""

    handle: int
    poisoned: TartletError | None
    peak_pages: int
    sampled_tokens: int
    input_tokens: int
    commands: int


@dataclass(frozen=True, slots=True)
class Adopted:
    """Tells a runtime that it has a program of another one: what control took of it, and how long it stood still."""

    handle: int
    commands: int
    paused_s: float


@dataclass(frozen=True, slots=True)
class Paused:
    """Tells a runtime that a program stands still, or for how long the program stood still."""

    handle: int
    over: Pause | None = None  # None: the pause begins
    earlier: bool = False  # the runtime was not told that it begins


@dataclass(slots=True)
class Notices:
    """Messages that aren't deliveries. They are rare, and sent after the deliveries before them."""

    started: list[tuple[int, TartletError | None, str]] = field(default_factory=list)  # handle, error, existing id
    kills: list[tuple[int, TartletError]] = field(default_factory=list)
    settled: list[Settled] = field(default_factory=list)
    adopted: list[Adopted] = field(default_factory=list)
    pauses: list[Paused] = field(default_factory=list)
    takeovers: list[tuple[str, int, bool]] = field(default_factory=list)  # program id, epoch, `whole`
    models_changed: bool = False
    find_journals: bool = False

    def __bool__(self) -> bool:
        told = self.started or self.kills or self.settled or self.adopted or self.takeovers or self.pauses
        return bool(told or self.models_changed or self.find_journals)


class Outbox:
    """Collects messages to one runtime. A writer takes all at once, so a step's answers leave in one frame."""

    __slots__ = ("_chunks", "_last", "_shared", "_size", "keeps", "notices")

    def __init__(self) -> None:
        self._last = Chunk()
        self._chunks = [self._last]
        self._size = 0
        self._shared: dict[int, int] = {}  # bytes of answers that other programs' values made, by handle
        self.notices = Notices()
        self.keeps: dict[int, Answers] = {}
        """Where the records to durable programs are kept, by handle."""

    def __bool__(self) -> bool:
        return bool(self._last.records) or len(self._chunks) > 1 or bool(self.notices)

    @property
    def size(self) -> int:
        """The number of bytes that wait."""
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
        kept = self.keeps.get(handle)
        if kept is not None:
            kept.add(Answer(event, flags, ticket, queue, a, b, c, payload))
        chunk = self._last
        if len(chunk.records) + len(chunk.payload) + len(payload) > _CHUNK_BYTES and chunk.records:
            self._cut()  # before it: with the largest answer behind it, a full chunk would pass a message's limit
            chunk = self._last
        chunk.handles += _HANDLE.pack(handle)
        chunk.records += RECORD_STRUCT.pack(event, flags, ticket, queue, a, b, c, len(chunk.payload), len(payload))
        if payload:
            chunk.payload += payload

    def fail(self, handle: int, ticket: int, queue: int, error: TartletError, *, answers: bool) -> None:
        """Append a failure: the answer to an awaited ticket, or the name of the first ticket to fail."""
        self.deliver(handle, FAILURE, _AWAIT if answers else 0, ticket, queue, error.number, 0, 0, error.to_json())

    def count_shared(self, handle: int, size: int) -> None:
        """Count the bytes of an answer of the store to a program, until they are taken."""
        self._shared[handle] = self._shared.get(handle, 0) + size

    def shared_bytes(self, handle: int) -> int:
        """Return the bytes of the store's answers that wait for a program."""
        return self._shared.get(handle, 0)

    def take(self) -> tuple[list[Chunk], Notices]:
        """Return everything that waits, in order, and empty the outbox."""
        chunks = [c for c in self._chunks if c.records]
        notices = self.notices
        self._last = Chunk()
        self._chunks = [self._last]
        self._size = 0
        self._shared.clear()
        self.notices = Notices()
        return chunks, notices

    def move(self, handle: int, to: Outbox, to_handle: int) -> None:
        """Let a durable program belong to another outbox, which repeats what isn't stored."""
        answers = self.keeps.pop(handle)
        for answer in answers.rest:
            to.deliver(to_handle, *answer)
        to.keeps[to_handle] = answers

    def keep(self, handles: set[int]) -> None:
        """Keep only what is for these programs. Other handles mean nothing on the runtime's new stream."""
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


class Limbo(Outbox):
    """The outbox of programs without a runtime: only what is kept of durable programs outlives it."""

    __slots__ = ()

    def deliver(  # noqa: PLR0913, PLR0917 - as of any outbox
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
        """Keep a record."""
        kept = self.keeps.get(handle)
        if kept is not None:
            kept.add(Answer(event, flags, ticket, queue, a, b, c, payload))

    def count_shared(self, handle: int, size: int) -> None:
        """No-op: nothing waits to be sent."""
