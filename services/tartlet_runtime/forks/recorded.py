"""Recorded runs in the runtime's store of journals, as clients may read them."""

from __future__ import annotations

import re
from typing import Final

from tartlet_common.errors.registry import JournalUnavailable, UnknownProgram
from tartlet_common.rpc.tenancy import Scope
from tartlet_runtime.journal.records import ParsedJournal, parse_journal
from tartlet_runtime.journal.store import JournalStore

_PROGRAM_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


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
