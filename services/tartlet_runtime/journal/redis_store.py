"""Journals as Redis streams, which outlive the machine of their runtime. Redis needs `appendfsync always`.

Appends of a turn travel as one script call, and wait for one answer at a time: what turns add meanwhile goes with the
next call. A call that failed is repeated as it was. Scripts count entries, so nothing is appended twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

import redis.asyncio as redis
from redis.exceptions import RedisError

from tartlet_common.errors.registry import (
    InvalidSource,
    JournalUnavailable,
    Superseded,
    TartletError,
    UnknownProgram,
)
from tartlet_runtime.journal import redis_scripts as scripts
from tartlet_runtime.journal.records import Kind, last_kind, read_header
from tartlet_runtime.journal.store import FIRST_EPOCH, Listener, LiveJournal, StoredJournal, Turn

log = logging.getLogger(__name__)

PREFIX = "tartlet:journal:"
CALL_BYTES = 8 << 20
"""Most bytes of one call; a single larger turn still goes out whole."""
_BACKOFF_S = (0.02, 0.05, 0.1, 0.25, 0.5)
_PAGE = 64
"""Entries read at once, and journals that are let go at once."""
_LISTED = 16
"""Journals looked at in one call: beginnings have programs' sources."""
_TIDY_EVERY = 8
"""Calls that append between two that let journals go, while turns wait."""
_LEFT_MS = 24 * 3600 * 1000
"""How long the journal of a program that was left to another runtime waits for that one."""
_Entries = list[tuple[bytes, dict[bytes, bytes]]]
_ERRORS = (RedisError, OSError, TimeoutError)


class RedisStore:
    """The streams of the programs of one runtime."""

    immediate = False

    def __init__(self, client: redis.Redis, kept_s: float) -> None:
        """Begin unconnected; `run` does the work.

        Args:
            client: from `redis_client.make_client`.
            kept_s: how long the journal of an ended program is kept unless it is deleted, in seconds.
        """
        self._client = client
        self._append_script = client.register_script(scripts.APPEND)
        self._expire_script = client.register_script(scripts.EXPIRE)
        self._live_script = client.register_script(scripts.LIVE)
        self._read_script = client.register_script(scripts.READ)
        self._kept_ms = max(1, int(kept_s * 1000))
        self._listener: Listener
        self.name = ""
        self.trouble = ""
        self.unstored_bytes = 0
        self._turns: list[Turn] = []  # not under way
        self._call: _Call | None = None  # under way, or to be repeated
        self._lengths: dict[str, int] = {}  # entries of each program's stream, as far as known
        self._anew: set[str] = set()  # whose next call replaces the stream
        self._epochs: dict[str, int] = {}  # of each program here
        self._expiring: list[tuple[str, int, int, int]] = []  # programs, epochs here, in how many ms, 1: left
        self._deleted: list[str] = []
        self._work = asyncio.Event()
        self.calls = 0
        """Calls that appended."""

    def listen(self, listener: Listener) -> None:
        """Tell `listener` from now on how far turns are stored."""
        self._listener = listener

    def open(self, program_id: str) -> None:
        """Begin without entries."""
        self._lengths[program_id] = 0
        self._epochs[program_id] = FIRST_EPOCH

    def begin_anew(self, program_id: str) -> None:
        """Let the next call replace the program's stream."""
        if program_id in self._lengths:
            self._forget_turns(program_id)
            self._anew.add(program_id)

    def append(self, turn: Turn) -> None:
        """Store a turn with the next call."""
        self._turns.append(turn)
        self.unstored_bytes += turn.size
        self._work.set()

    def drop(self, program_id: str) -> None:
        """Forget what waits of a program, and its journal: nobody may begin the program again behind it."""
        epoch = self._epochs.get(program_id)
        self._let_go(program_id)
        if epoch is not None:
            self._expire(program_id, epoch, 1)

    def _let_go(self, program_id: str) -> None:
        self._forget_turns(program_id)
        self._lengths.pop(program_id, None)
        self._epochs.pop(program_id, None)
        self._anew.discard(program_id)

    def _forget_turns(self, program_id: str) -> None:
        kept = [Turn(t.number, tuple(p for p in t.parts if p.program_id != program_id)) for t in self._turns]
        self.unstored_bytes -= sum(t.size for t in self._turns) - sum(t.size for t in kept)
        self._turns = kept

    def close(self, program_id: str, *, keep: bool) -> None:
        """Keep an ended program's journal for a while."""
        epoch = self._epochs.pop(program_id, None)
        if self._lengths.pop(program_id, None) is not None and epoch is not None:
            self._expire(program_id, epoch, self._kept_ms)

    def leave(self, program_id: str, epoch: int) -> None:
        """Append nothing more to a journal, unless this runtime owns the journal again with a later epoch."""
        if self._epochs.get(program_id, epoch) <= epoch:
            self._let_go(program_id)
            self._expire(program_id, epoch, max(self._kept_ms, _LEFT_MS), is_left=True)

    def _expire(self, program_id: str, epoch: int, in_ms: int, *, is_left: bool = False) -> None:
        self._expiring.append((program_id, epoch, in_ms, int(is_left)))
        self._work.set()

    def forget(self, program_id: str) -> None:
        """Delete a journal in the background."""
        self._deleted.append(program_id)
        self._work.set()

    # ---- appending ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Append what comes until cancelled."""
        failures = 0
        task = asyncio.current_task()
        assert task is not None
        while not task.cancelling():  # the client may swallow a cancellation
            try:
                if not self.name:
                    await self._introduce()
                await self._work.wait()
                self._work.clear()
                while (waits := self._call is not None or bool(self._turns)) or self._expiring or self._deleted:
                    if waits:
                        await self._append_some()
                    if not waits or self.calls % _TIDY_EVERY == 0:
                        await self._tidy_some()
                    failures = 0
                    self.trouble = ""
                self.trouble = ""
            except _ERRORS as e:
                if not failures:
                    log.warning("the journals' Redis: %s", _told(e))
                self.trouble = _told(e)
                self._work.set()
                await asyncio.sleep(_BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)])
                failures += 1

    async def _introduce(self) -> None:
        """Learn which Redis this is: whoever comes first names it."""
        await self._client.set(f"{PREFIX}name", uuid.uuid4().hex, nx=True)
        name = cast("bytes", await self._client.get(f"{PREFIX}name"))
        with contextlib.suppress(RedisError):  # a server may refuse to say
            persistence = await self._client.info("persistence")
            if not persistence.get("aof_enabled"):
                log.warning("the journals' Redis writes no append-only file: its death may lose journals")
        self.name = f"redis {name.decode()}"

    async def _append_some(self) -> None:
        """Append the turns that wait, in one call. A call that failed is repeated first, unchanged."""
        call = self._call or self._next_call()
        self._call = call
        for (program_id, epoch), status in zip(call.epochs.items(), await self._send(call), strict=True):
            if epoch < self._epochs.get(program_id, epoch):  # this runtime owns it anew, and has read what is stored
                continue
            if status == scripts.OK:
                if program_id in self._lengths:
                    self._lengths[program_id] = max(1, self._lengths[program_id] + 1)
            else:
                self._lengths.pop(program_id, None)
                self._listener.refused(program_id, _refusal(program_id, status))
        self._call = None
        self.unstored_bytes -= call.size
        self._listener.stored(call.turn)

    def _next_call(self) -> _Call:
        count = size = 0
        for turn in self._turns:
            if count and size + turn.size > CALL_BYTES:
                break
            count += 1
            size += turn.size
        turns, self._turns = self._turns[:count], self._turns[count:]
        data: dict[str, bytearray] = {}
        epochs: dict[str, int] = {}
        for part in (part for turn in turns for part in turn.parts):
            if part.program_id in self._lengths:  # else it was refused before
                data.setdefault(part.program_id, bytearray()).extend(part.data)
                epochs[part.program_id] = part.epoch
        keys = [key for program_id in data for key in _keys(program_id)]
        arguments: list[bytes | int] = []
        for program_id, added in data.items():
            if program_id in self._anew:
                self._anew.discard(program_id)
                self._lengths[program_id] = -1
            arguments += [epochs[program_id], self._lengths[program_id] + 1, bytes(added)]
        return _Call(turns[-1].number, size, epochs, keys, arguments)

    async def _send(self, call: _Call) -> Sequence[int]:
        if not call.epochs:
            return ()
        self.calls += 1
        return cast("Sequence[int]", await self._append_script(keys=call.keys, args=call.arguments))

    async def _tidy_some(self) -> None:
        """Let some of the journals expire whose programs have ended or left, and delete some that nobody needs."""
        if expiring := self._expiring[:_PAGE]:
            keys = [key for program_id, *_ in expiring for key in _keys(program_id)]
            await self._expire_script(keys=keys, args=[number for _, *numbers in expiring for number in numbers])
            del self._expiring[: len(expiring)]
        if deleted := self._deleted[:_PAGE]:
            await self.delete(deleted)
            del self._deleted[: len(deleted)]

    # ---- other owners -----------------------------------------------------------------------------------------

    async def take_over(self, program_id: str, epoch: int) -> StoredJournal:
        """Become the owner of a program with `epoch`, which must be higher than its owner's, and return its journal.

        Raises:
            UnknownProgram: there is no such journal.
            Superseded: somebody else has become the owner with this epoch or a later one.
            JournalUnavailable: the stream is shorter than what was stored, or Redis can't be reached.
        """
        journal, length = await self._read(program_id, str(epoch))
        self._lengths[program_id], self._epochs[program_id] = length, epoch
        return journal

    async def read(self, program_id: str) -> StoredJournal:
        """Return a program's journal.

        Raises:
            UnknownProgram: there is no such journal.
            JournalUnavailable: the stream is shorter than what was stored, or Redis can't be reached.
        """
        return (await self._read(program_id, ""))[0]

    async def _read(self, program_id: str, epoch: str) -> tuple[StoredJournal, int]:
        try:
            answer = await self._read_script(keys=_keys(program_id), args=[epoch])
            if answer[0] != scripts.OK:
                raise _refusal(program_id, answer[0])
            data, last, found = bytearray(), "0-0", 0
            stream = _keys(program_id)[1]
            while entries := cast("_Entries", await self._client.xrange(stream, f"({last}", "+", _PAGE)):
                for name, fields in entries:
                    data += fields[b"d"]
                    last, found = name.decode(), found + 1
        except _ERRORS as e:
            raise JournalUnavailable(detail=_told(e)) from e
        if found < answer[2]:
            raise _refusal(program_id, scripts.SHORT)
        return StoredJournal(answer[1], bytes(data)), found

    async def live(self) -> list[LiveJournal]:
        """Return the journals whose programs have not ended, or whose ends nobody was told, also of owners that live.

        Raises:
            JournalUnavailable: Redis can't be reached.
        """
        try:
            owners = [key.decode() async for key in self._client.scan_iter(f"{PREFIX}*:owner", count=1000)]
            ids = sorted({key[len(PREFIX) : -len(":owner")] for key in owners} - self._epochs.keys())
            journals: list[LiveJournal] = []
            for at in range(0, len(ids), _LISTED):
                some = ids[at : at + _LISTED]
                keys = [key for program_id in some for key in _keys(program_id)]
                for place, epoch, length, first, last, is_closed in await self._live_script(keys=keys):
                    with contextlib.suppress(InvalidSource):
                        header, end = read_header(first, some[place])
                        has_ended = last_kind(last, end if length == 1 else 0) == Kind.END
                        if header.can_run_again and not (has_ended and is_closed):  # closed once the end was told
                            journals.append(LiveJournal(epoch, header))
        except _ERRORS as e:
            raise JournalUnavailable(detail=_told(e)) from e
        return journals

    async def delete(self, program_ids: Iterable[str]) -> None:
        """Delete journals, with their owners."""
        keys = [key for program_id in program_ids for key in _keys(program_id)]
        if keys:
            await self._client.unlink(*keys)


class _Call(NamedTuple):
    """One call of the script that appends."""

    turn: int
    size: int
    epochs: dict[str, int]
    """With which epoch entries of each program were made."""
    keys: list[str]
    arguments: list[bytes | int]


def _keys(program_id: str) -> tuple[str, str]:
    return f"{PREFIX}{program_id}:owner", f"{PREFIX}{program_id}"


def _refusal(program_id: str, status: int) -> TartletError:
    if status == scripts.SUPERSEDED:
        return Superseded(program=program_id)
    if status == scripts.UNKNOWN:
        return UnknownProgram(program=program_id)
    return JournalUnavailable(detail="its stream is shorter than what was stored", for_good=True)


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
