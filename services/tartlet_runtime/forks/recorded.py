"""Recorded runs: in the runtime's store of journals, as clients may read them, and those that clients upload."""

from __future__ import annotations

import asyncio
import re
from dataclasses import fields
from typing import Final

import msgspec

from tartlet_common.errors.registry import (
    InvalidArgument,
    InvalidSource,
    JournalUnavailable,
    PermissionDenied,
    UnknownProgram,
)
from tartlet_common.rpc.tenancy import Scope
from tartlet_runtime.journal.journals import Journals
from tartlet_runtime.journal.records import JournalHeader, Kind, ParsedJournal, parse_journal
from tartlet_runtime.journal.store import JournalStore

_LATEST_NS: Final = 1 << 62
"""About the year 2116: guests count nanoseconds in 64 bits with a sign."""
_PROGRAM_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_AT_ONCE: Final = 2
"""Journals that are in memory for clients at the same time: each may have `journal_bytes`."""
_STORED_S: Final = 30.0
_POLL_S: Final = 0.01


def uploaded(data: bytes) -> ParsedJournal:
    """Read a journal that a client has uploaded.

    Raises:
        InvalidSource: it is none, or its header or its times make no sense.
    """
    try:
        parsed = parse_journal(data, "the uploaded journal")
        header = parsed.header
        msgspec.convert({field.name: getattr(header, field.name) for field in fields(header)}, JournalHeader)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as e:
        raise InvalidSource(detail=f"the header of the uploaded journal makes no sense: {e}") from e
    latest_ns = max((record.clock_ns for record in parsed.records), default=0)
    if header.start_ns < 0 or header.start_ns + latest_ns >= _LATEST_NS:
        raise InvalidSource(detail="the times of the uploaded journal make no sense")
    return parsed


class RecordedRuns:
    """Reads and imports journals for clients, each of which sees those of its tenant alone."""

    def __init__(self, store: JournalStore, journals: Journals, limit_bytes: int) -> None:
        """Read from `store`, and import journals of at most `limit_bytes` through `journals`."""
        self._store = store
        self._journals = journals
        self.limit_bytes = limit_bytes
        self.slots = asyncio.Semaphore(_AT_ONCE)
        """Held by calls that move a whole journal."""
        self._importing: set[str] = set()

    async def read(self, program_id: str, scope: Scope) -> ParsedJournal:
        """Return a program's journal, as far as it is stored.

        Raises:
            UnknownProgram: the store has no such journal, or only one of another tenant.
            JournalUnavailable: the journal is damaged, or the store can't be reached.
        """
        return (await self.fetch(program_id, scope))[1]

    async def fetch(self, program_id: str, scope: Scope, *, torn: bool = False) -> tuple[bytes, ParsedJournal]:
        """Return a program's journal as bytes, too. Raises what `read` does; with `torn`, its end may be damaged."""
        if not _PROGRAM_ID.fullmatch(program_id):  # it becomes the name of a file
            raise UnknownProgram(program=f"{program_id[:64]!r} with a journal")
        data = (await self._store.read(program_id)).data
        parsed = parse_journal(data, program_id)
        if not scope.allows(parsed.header.tenant):
            raise UnknownProgram(program=program_id)
        if parsed.size != len(data) and not torn:
            raise JournalUnavailable(detail=f"byte {parsed.size} of {len(data)} is damaged")
        return data, parsed

    async def put(self, data: bytes, scope: Scope) -> str:
        """Store the journal of an ended run, unless it is there already. Returns the program's id.

        Raises:
            InvalidSource: this is no intact journal.
            InvalidArgument: the run hasn't ended, or the store has another journal of the program.
            PermissionDenied: the run is another tenant's.
            Overloaded, DiskFull, JournalFull, JournalUnavailable: it can't be stored.
        """
        program_id = self._checked(data, scope)
        if program_id in self._importing:
            raise InvalidArgument(argument="journal", detail=f"{program_id} is being imported by another call")
        self._importing.add(program_id)
        try:
            if not await self._has(program_id, data):
                await self._add(program_id, data)
        finally:
            self._importing.discard(program_id)
        return program_id

    @staticmethod
    def _checked(data: bytes, scope: Scope) -> str:
        parsed = uploaded(data)
        header = parsed.header
        if parsed.size != len(data) or not _PROGRAM_ID.fullmatch(header.program_id):
            raise InvalidSource(detail=f"byte {parsed.size} of {len(data)} of the journal is damaged")
        if not scope.allows(header.tenant):
            raise PermissionDenied(
                caller=f"tenant {scope.tenant!r}", method=f"import for tenant {header.tenant[:64]!r}"
            )
        if not parsed.records or parsed.records[-1].kind != Kind.END:  # a runtime would begin it again
            detail = "the run has not ended, and a store has journals of ended runs only; a fork takes the file itself"
            raise InvalidArgument(argument="journal", detail=detail)
        return header.program_id

    async def _has(self, program_id: str, data: bytes) -> bool:
        try:
            there = (await self._store.read(program_id)).data
        except UnknownProgram:
            return False
        if there != data:
            raise InvalidArgument(argument="journal", detail=f"the store has another journal of {program_id}")
        return True

    async def _add(self, program_id: str, data: bytes) -> None:
        journals = self._journals
        journals.close(journals.open(program_id, data, self.limit_bytes), keep=True)
        turn = journals.turn - 1
        try:
            async with asyncio.timeout(_STORED_S):
                while journals.stored_turn < turn:  # noqa: ASYNC110 - the store's own task tells it
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise JournalUnavailable(detail=f"the journal was not stored within {_STORED_S:g} s") from None
        there = (await self._store.read(program_id)).data
        if there != data:  # another runtime was first, or the disk is full
            if data.startswith(there):
                await self._store.delete([program_id])
            raise JournalUnavailable(detail=f"{len(there)} bytes of {len(data)} were stored")
