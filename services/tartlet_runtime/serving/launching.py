"""Launches: checks what is asked for, in portions, and enters it into the table of programs."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from tartlet_common.errors.registry import InternalError, InvalidSource, TartletError
from tartlet_common.rpc.error_proto import error_to_proto
from tartlet_common.rpc.tenancy import Scope
from tartlet_protos import common_pb2, programs_pb2
from tartlet_runtime.abi.limits import ProgramLimits
from tartlet_runtime.budget.turns import Turns
from tartlet_runtime.forks.cutting import Past, cut, grants_of, launch_of
from tartlet_runtime.forks.reading import JournalReader
from tartlet_runtime.forks.recorded import uploaded
from tartlet_runtime.link.control_link import ControlLink
from tartlet_runtime.program.driver import Driver
from tartlet_runtime.program.program import MakeGuest
from tartlet_runtime.program.spec import ProgramSpec
from tartlet_runtime.serving.calls import Call
from tartlet_runtime.serving.programs import ProgramTable
from tartlet_runtime.serving.sources import Sources
from tartlet_runtime.serving.specs import specify

log = logging.getLogger(__name__)

_Event = programs_pb2.ProgramEvent
_COMPILED_AT_ONCE: Final = 4  # of one call's launches, and of one tenant's children: others' come between
_PORTION: Final = 32  # launches between two turns of the loop
_MOST_PAUSES: Final = 50
_AT_CONTROL: Final = 4 * _PORTION  # launches that control is to answer before there are more


class Launching:
    """Launches what calls ask for; every spec gets an answer of its own."""

    def __init__(
        self, table: ProgramTable, driver: Driver, link: ControlLink, sources: Sources, reader: JournalReader
    ) -> None:
        """Take the parts that launches need."""
        self._table = table
        self._driver = driver
        self._link = link
        self.sources = sources
        self.reader = reader
        self.recorded = reader.recorded
        self._slowly = Turns(_COMPILED_AT_ONCE)  # children

    async def all(self, specs: Sequence[programs_pb2.LaunchSpec], call: Call, scope: Scope) -> None:
        """Launch many."""
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._launch_portions(specs, call, tasks, scope)
        except Exception as e:
            log.exception("launch")
            error = error_to_proto(InternalError(detail=repr(e)))
            for index in range(len(specs)):
                call.answer_if_open(index, _Event(kind=_Event.REJECTED, error=error))

    async def _launch_portions(
        self, specs: Sequence[programs_pb2.LaunchSpec], call: Call, tasks: asyncio.TaskGroup, scope: Scope
    ) -> None:
        """Launch in portions, so that the first programs run while the last ones are still to be launched."""
        slowly = asyncio.Semaphore(_COMPILED_AT_ONCE)
        for index, asked in enumerate(specs):
            if not self.at_once(asked, call, index, scope):
                tasks.create_task(self._launch_slowly(asked, call, index, slowly, scope))
            if index % _PORTION == _PORTION - 1:
                await asyncio.sleep(0)
                for _ in range(_MOST_PAUSES):  # then they may as well wait there
                    if self._driver.starting <= _AT_CONTROL or not self._link.connected:
                        break
                    await asyncio.sleep(0.001)
                while self._driver.num_new > _PORTION:  # noqa: ASYNC110 - the turns between are theirs
                    await asyncio.sleep(0)

    def at_once(self, asked: programs_pb2.LaunchSpec, call: Call, index: int, scope: Scope) -> bool:
        """Launch or reject. Returns False if something must be fetched or compiled first."""
        try:
            asked.tenant = scope.own(asked.tenant, "Launch")
            if asked.inferlet or asked.HasField("fork") or (asked.source.digest and not asked.source.data):
                return False
            spec = specify(asked, asked.source, self._table.limits, self._table.durability)
            maker = self._table.maker(spec)
            if maker is None:
                return False
            self._launch(spec, maker, asked, call, index)
        except TartletError as e:
            call.reject(index, e)
        except Exception as e:
            log.exception("launch")
            call.reject(index, InternalError(detail=repr(e)))
        return True

    async def _launch_slowly(
        self, asked: programs_pb2.LaunchSpec, call: Call, index: int, slowly: asyncio.Semaphore, scope: Scope
    ) -> None:
        fork: Past | None = None
        try:
            async with slowly:
                if asked.HasField("fork"):
                    asked, fork = await self._begun(asked, scope)
                asked, source, entry = await self.sources.find(asked)
                spec = specify(asked, source, self._table.limits, self._table.durability, entry)
                if fork is not None:
                    spec = replace(spec, grants=grants_of(fork, spec.grants))
                    self._check(fork, spec)
                maker = self._table.maker(spec) or await self._table.compile(spec)
            self._launch(spec, maker, asked, call, index, fork)
        except TartletError as e:
            call.reject(index, e)
        except Exception as e:
            log.exception("launch")
            call.reject(index, InternalError(detail=repr(e)))

    async def child(
        self,
        asked: programs_pb2.LaunchSpec,
        call: Call,
        limits: ProgramLimits,
        born: Callable[[ProgramSpec, bool], ProgramSpec],
    ) -> None:
        """Launch a program for another one. Raises nothing: `call` gets the answer.

        Args:
            asked: the launch.
            call: gets the answer and the events.
            limits: the parent's, which take the place of the server's.
            born: gives the child what it has of its parent, and is told whether the catalogue has an entry for it.
        """
        try:
            async with self._slowly.turn(asked.tenant):
                asked, source, entry = await self.sources.find(asked)
                spec = born(specify(asked, source, limits, self._table.durability, entry), entry is not None)
                maker = self._table.maker(spec) or await self._table.compile(spec)
            self._launch(spec, maker, asked, call, 0)
        except TartletError as e:
            call.reject(0, e)
        except Exception as e:
            log.exception("launch")
            call.reject(0, InternalError(detail=repr(e)))

    async def _begun(self, asked: programs_pb2.LaunchSpec, scope: Scope) -> tuple[programs_pb2.LaunchSpec, Past]:
        """Return the launch of a fork, and its past.

        Raises:
            UnknownProgram, InvalidSource, InvalidArgument, NotAllowed, JournalUnavailable: there can be none.
        """
        fork = asked.fork
        if fork.journal:
            data = (await self.sources.resolve(common_pb2.Source(digest=fork.journal))).data
            parsed = uploaded(data)
        else:
            parsed = await self.recorded.read(fork.program_id, scope)
        past = cut(parsed, fork.deliveries)
        return launch_of(past, asked), past

    def _check(self, fork: Past, spec: ProgramSpec) -> None:
        """Check that this runtime can run the recorded run again.

        Raises:
            InvalidSource: it was recorded with another component.
        """
        source, recorded = fork.header.source, fork.header.component
        here = self._table.identity(replace(spec, source=source, digest=hashlib.sha256(source).hexdigest()))
        if here != recorded:
            raise InvalidSource(detail=f"the journal belongs to the component {recorded[:12]}, here is {here[:12]}")

    def _launch(
        self,
        spec: ProgramSpec,
        maker: MakeGuest,
        asked: programs_pb2.LaunchSpec,
        call: Call,
        index: int,
        fork: Past | None = None,
    ) -> None:
        existing = self._table.existing(spec.tenant, spec.idempotency_key)
        if existing is not None:
            existing.tie.stays |= not asked.tie
            self._table.join(existing, call, index, attach=asked.attach)
            return
        program = self._table.launch(spec, maker, call, index, attach=asked.attach, fork=fork)
        if asked.tie:
            call.tie(index, program.tie, asked.client, self._table.client_grace_s if asked.client else 0.0)
