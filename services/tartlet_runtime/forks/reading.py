"""Recorded runs as their tenants read them: turn by turn, from their journals."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import Final

from tartlet_common.errors.registry import (
    DeadlineExceeded,
    InvalidArgument,
    JournalUnavailable,
    NoJournal,
    Unavailable,
    UnknownProgram,
)
from tartlet_common.rpc.tenancy import Scope
from tartlet_protos import programs_pb2
from tartlet_runtime.answers.isolated import ONE_THREAD
from tartlet_runtime.budget.ledger import Ledger, Use
from tartlet_runtime.forks.recorded import RecordedRuns
from tartlet_runtime.journal.records import JournalHeader
from tartlet_runtime.program.program import Program

MOST_TURNS: Final = 200
_PROCESS: Final = "tartlet_runtime.timetravel.turns"  # beside the runtime: a run is run again to know its calls
_OWN_BYTES: Final = 128 << 20
_CPU_S: Final = 20
_WAIT_S: Final = 60.0
_AT_ONCE: Final = 1


class JournalReader:
    """Reads journals, one at a time, each in a process of its own."""

    def __init__(self, recorded: RecordedRuns, ledger: Ledger) -> None:
        """Take journals from `recorded`, and the processes' memory from `ledger`."""
        self.recorded = recorded
        self._ledger = ledger
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def read(self, request: programs_pb2.ReadJournalRequest, scope: Scope, program: Program | None) -> bytes:
        """Return a page of a journal as JSON.

        Args:
            request: which turns of which program.
            scope: whose journals the caller may read.
            program: the program, if this runtime has it.

        Raises:
            InvalidArgument: there are no such turns.
            NoJournal: the program keeps no journal, or it is gone.
            UnknownProgram: nobody here knows the program, or another tenant owns it.
            JournalUnavailable: the journal can't be read.
            MemoryBudgetExceeded, DeadlineExceeded, Unavailable: the runtime can't run the program again now.
        """
        if not 1 <= request.count <= MOST_TURNS:
            raise InvalidArgument(argument="count", detail=f"a number of turns from 1 to {MOST_TURNS}")
        if request.first < 1:
            raise InvalidArgument(argument="first", detail="the number of a turn, from 1")
        if program is not None and not program.spec.durable:
            raise NoJournal(program=program.program_id, why="it keeps none")
        async with self._turns:
            try:
                data, parsed = await self.recorded.fetch(request.program_id, scope, torn=True)
            except UnknownProgram:
                if program is None:
                    raise
                raise NoJournal(program=program.program_id, why="it is gone, or not stored yet") from None
            share = _OWN_BYTES + _memory_of(parsed.header)
            self._ledger.take(Use.PROGRAMS, share)
            try:
                return await _page(data[: parsed.size], request)
            finally:
                self._ledger.give(Use.PROGRAMS, share)


def _memory_of(header: JournalHeader) -> int:
    return int(header.limits.get("reserved_bytes") or header.limits.get("memory_bytes") or 0)


async def _page(journal: bytes, request: programs_pb2.ReadJournalRequest) -> bytes:
    numbers = map(str, (request.first, request.count, _CPU_S))
    command = [sys.executable, "-P", "-m", _PROCESS, *numbers, *(["--texts"] if request.texts else [])]
    pipe = asyncio.subprocess.PIPE
    try:
        child = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, env=os.environ | ONE_THREAD
        )
    except OSError as e:
        raise Unavailable(what="a process that reads journals", detail=str(e)) from e
    try:
        async with asyncio.timeout(_WAIT_S):
            page, said = await child.communicate(journal)
    except TimeoutError:
        raise DeadlineExceeded(deadline_s=_WAIT_S) from None
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
        code = await child.wait()
    if code != 0:
        detail = said.decode(errors="replace").strip().rpartition("\n")[2]
        raise JournalUnavailable(detail=f"the process that reads it ended with status {code}: {detail}")
    return page
