"""Recorded runs: in the runtime's store of journals, as clients may read them, and those that clients upload."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Final

import msgspec

from tartlet_common.errors.registry import InvalidSource, JournalUnavailable, UnknownProgram
from tartlet_common.rpc.tenancy import Scope
from tartlet_runtime.journal.records import JournalHeader, ParsedJournal, parse_journal
from tartlet_runtime.journal.store import JournalStore

_LATEST_NS: Final = 1 << 62
"""About the year 2116: guests count nanoseconds in 64 bits with a sign."""
_PROGRAM_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


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
    """Reads journals for clients, each of which sees those of its tenant alone."""

    def __init__(self, store: JournalStore) -> None:
        """Read from `store`."""
        self._store = store

    async def read(self, program_id: str, scope: Scope) -> ParsedJournal:
        """Return a program's journal, as far as it is stored.

        Raises:
            UnknownProgram: the store has no such journal, or only one of another tenant.
            JournalUnavailable: the journal is damaged, or the store can't be reached.
        """
        return (await self.fetch(program_id, scope))[1]

    async def fetch(self, program_id: str, scope: Scope) -> tuple[bytes, ParsedJournal]:
        """Return a program's journal as bytes, too. Raises what `read` does."""
        if not _PROGRAM_ID.fullmatch(program_id):  # it becomes the name of a file
            raise UnknownProgram(program=f"{program_id[:64]!r} with a journal")
        data = (await self._store.read(program_id)).data
        parsed = parse_journal(data, program_id)
        if not scope.allows(parsed.header.tenant):
            raise UnknownProgram(program=program_id)
        if parsed.size != len(data):
            raise JournalUnavailable(detail=f"byte {parsed.size} of {len(data)} is damaged")
        return data, parsed
