"""Recorded runs as their tenants read them: turn by turn, from their journals."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
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
from tartlet_protos import common_pb2, programs_pb2
from tartlet_runtime.answers.isolated import ONE_THREAD
from tartlet_runtime.budget.ledger import Ledger, Use
from tartlet_runtime.budget.turns import Turns
from tartlet_runtime.forks.recorded import RecordedRuns
from tartlet_runtime.journal.records import JournalHeader
from tartlet_runtime.program.program import Program
from tartlet_runtime.wasm.compiling.bounded import anonymous_bytes

MOST_TURNS: Final = 200
_PROCESS: Final = "tartlet_runtime.timetravel.turns"  # beside the runtime: a run is run again to know its calls
_LEAST_BYTES: Final = 128 << 20  # a small Python program takes 45 MiB
_COMPILER_BYTES: Final = 128 << 20  # for modules
_MOST_GUEST_BYTES: Final = 256 << 20
_COPIES: Final = 3  # of the journal, in the process
_LOOK_S: Final = 0.05
_DETAIL_CHARS: Final = 300
_CPU_S: Final = 20
_WAIT_S: Final = 60.0
_AT_ONCE: Final = 1


class JournalReader:
    """Reads journals, one at a time, each in a process of its own. Tenants take turns, however many each wants read."""

    def __init__(self, recorded: RecordedRuns, ledger: Ledger) -> None:
        """Take journals from `recorded`, and the processes' memory from `ledger`."""
        self.recorded = recorded
        self._ledger = ledger
        self._tenants = Turns(_AT_ONCE)
        self._processes = asyncio.Semaphore(_AT_ONCE)

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
        async with self._tenants.turn(scope.tenant or ""), self._processes:
            try:
                data, parsed = await self.recorded.fetch(request.program_id, scope, torn=True)
            except UnknownProgram:
                if program is None:
                    raise
                why = (
                    "it is not stored yet, or gone: those of programs that succeeded are kept with keep_journals alone"
                )
                raise NoJournal(program=program.program_id, why=why) from None
            least = _LEAST_BYTES + (_COMPILER_BYTES if parsed.header.language == common_pb2.Source.WASM else 0)
            most = least + _memory_of(parsed.header) + _COPIES * parsed.size
            share = self._ledger.take_share(Use.PROGRAMS, least, most)
            try:
                return await _page(data[: parsed.size], request, share)
            finally:
                self._ledger.give(Use.PROGRAMS, share)


def _memory_of(header: JournalHeader) -> int:
    """Return the bytes that the guest may take. A client that uploads a journal writes any limits into it."""
    asked = header.limits.get("memory_bytes")
    return min(max(asked, 0), _MOST_GUEST_BYTES) if isinstance(asked, int) else _MOST_GUEST_BYTES


async def _page(journal: bytes, request: programs_pb2.ReadJournalRequest, share: int) -> bytes:
    numbers = map(str, (request.first, request.count, _CPU_S))
    command = [sys.executable, "-P", "-m", _PROCESS, *numbers, *(["--texts"] if request.texts else [])]
    pipe = asyncio.subprocess.PIPE
    try:
        child = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, env=os.environ | ONE_THREAD, start_new_session=True
        )
    except OSError as e:
        raise Unavailable(what="a process that reads journals", detail=str(e)) from e
    bounding = asyncio.create_task(_bound(child, share))
    try:
        async with asyncio.timeout(_WAIT_S):
            page, said = await child.communicate(journal)
    except TimeoutError:
        raise DeadlineExceeded(deadline_s=_WAIT_S) from None
    finally:
        bounding.cancel()
        _kill(child)
        code = await child.wait()
    if bounding.done() and not bounding.cancelled():
        raise JournalUnavailable(detail=f"running the program again takes more than {share >> 20} MiB")
    if code != 0:
        detail = said.decode(errors="replace").strip().rpartition("\n")[2][:_DETAIL_CHARS]
        raise JournalUnavailable(detail=f"the process that reads it ended with status {code}: {detail}")
    return page


async def _bound(child: asyncio.subprocess.Process, share: int) -> None:
    """End a process once it holds more than its share: what a program sends is kept until its turns are told."""
    while anonymous_bytes(child.pid) <= share:  # noqa: ASYNC110 - the kernel tells nobody
        await asyncio.sleep(_LOOK_S)
    _kill(child)


def _kill(child: asyncio.subprocess.Process) -> None:
    """End a process with its compiler, if it hasn't ended."""
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
