"""Programs of other runtimes that control gives this one: their journals are read, and they begin again from these."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from dataclasses import asdict

from tartlet_common.capabilities import Grant
from tartlet_common.errors.registry import (
    InternalError,
    JournalUnavailable,
    TartletError,
)
from tartlet_common.rpc.error_proto import error_to_proto
from tartlet_protos import control_pb2
from tartlet_runtime.abi.limits import ProgramLimits
from tartlet_runtime.journal.records import JournalHeader, parse_journal
from tartlet_runtime.journal.store import JournalStore
from tartlet_runtime.link.control_link import ControlLink
from tartlet_runtime.program.rerun import Rerun
from tartlet_runtime.program.spec import ProgramSpec
from tartlet_runtime.serving.programs import ProgramTable
from tartlet_runtime.serving.recording import Past
from tartlet_runtime.serving.relay import Spawn

log = logging.getLogger(__name__)

_SEARCH_AGAIN_S = 1.0
_AT_ONCE = 16
"""Journals that are read and parsed at the same time."""


class Adoption:
    """Takes programs over, one task for each."""

    def __init__(self, table: ProgramTable, store: JournalStore, link: ControlLink, spawn: Spawn) -> None:
        """Take over what control names from now on. `spawn` owns the tasks."""
        self._table = table
        self._store = store
        self._link = link
        self._spawn = spawn
        self._slots = asyncio.Semaphore(_AT_ONCE)
        table.take_over, table.find_journals = self.begin, self.find
        link.on_lost = self.drop
        self._search: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[None]] = set()

    def drop(self) -> None:
        """Leave what control has asked for: the next one finds these programs' journals and names an owner anew."""
        for task in self._under_way:
            task.cancel()
        if self._search is not None:
            self._search.cancel()

    def find(self) -> None:
        """Tell control which programs of the store have not ended."""
        if self._search is not None:  # of a control before this one
            self._search.cancel()
        self._search = self._spawn(self._find())

    async def _find(self) -> None:
        while True:
            try:
                journals = await self._store.live()
                break
            except TartletError as e:
                log.warning("the journals can't be listed: %s", e)
            await asyncio.sleep(_SEARCH_AGAIN_S)
        log.info("journals of programs that have not ended, without those that run here: %d", len(journals))
        self._link.found(
            [
                control_pb2.FoundJournal(
                    program_id=found.header.program_id,
                    epoch=found.epoch,
                    tenant=found.header.tenant,
                    idempotency_key=found.header.idempotency_key,
                    model=found.header.model,
                    pool=found.header.pool,
                    name=found.header.name,
                )
                for found in journals
            ]
        )

    def begin(self, program_id: str, epoch: int, *, whole: bool = False) -> None:
        """Become the owner of a program with `epoch`, begin it again, and tell control.

        `whole`: as of `RecoveredProgram`.
        """
        task = self._spawn(self._take_over(program_id, epoch, whole=whole))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _take_over(self, program_id: str, epoch: int, *, whole: bool) -> None:
        try:
            async with self._slots:
                await self._begin_again(program_id, epoch, whole=whole)
            return
        except TartletError as e:
            lost = e
        except Exception as e:
            log.exception("program %s", program_id)
            lost = InternalError(detail=repr(e))
        log.warning("program %s can't be taken over: %s", program_id, lost)
        start = control_pb2.ProgramStart(program_id=program_id, epoch=epoch, adopts=True, lost=error_to_proto(lost))
        self._link.start(start)

    async def _begin_again(self, program_id: str, epoch: int, *, whole: bool) -> None:
        self._table.supersede(program_id)
        stored = await self._store.take_over(program_id, epoch)
        try:
            parsed = parse_journal(stored.data, program_id)
            if parsed.size != len(stored.data):
                detail = f"byte {parsed.size} of {len(stored.data)} is damaged"
                raise JournalUnavailable(detail=detail, for_good=True)
            spec = spec_of(parsed.header, self._table.limits)
            make_guest = self._table.maker(spec, parsed.header.component) or await self._table.compile(spec)
            header = stored.data[: parsed.header_bytes]
            told = parsed.header
            rerun = Rerun.of(parsed.records, told.lag_ns)
            past = Past(header, told.start_ns, parsed.size, stored.epoch, rerun, told.since_offset)
            self._table.adopt(spec, make_guest, past, whole=whole)
            log.info("program %s begins again%s", program_id, ", of which control knows its journal alone" * whole)
        except BaseException:
            self._store.leave(program_id, stored.epoch)
            raise


def spec_of(header: JournalHeader, defaults: ProgramLimits) -> ProgramSpec:
    """Return what a program was launched as, from its journal. Limits that the header doesn't name are `defaults`."""
    limits = asdict(defaults)
    limits |= {name: value for name, value in header.limits.items() if name in limits}
    return ProgramSpec(
        program_id=header.program_id,
        name=header.name,
        language=header.language,
        filename=header.filename,
        source=header.source,
        digest=hashlib.sha256(header.source).hexdigest(),
        args=header.args,
        model=header.model,
        pool=header.pool,
        tenant=header.tenant,
        idempotency_key=header.idempotency_key,
        limits=ProgramLimits(**limits),
        durable=True,
        degrades=header.degrades,
        seed=header.seed,
        seeded=True,
        tied=header.tied,
        grants=tuple(Grant.from_json(told) for told in header.grants),
        session=header.session,
        parent_session=header.parent_session,
        ends_session=header.ends_session,
        parent=header.parent,
        detached=header.detached,
    )
