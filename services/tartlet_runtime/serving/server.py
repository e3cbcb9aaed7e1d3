"""The `Programs` service: what clients call."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, TypeAlias

import grpc
import grpc.aio

from tartlet_common.errors.registry import (
    DeadlineExceeded,
    InvalidArgument,
    JournalFull,
    Overloaded,
    ProgramKilled,
    TartletError,
    Unavailable,
    UnknownProgram,
)
from tartlet_common.rpc.aborts import abort
from tartlet_common.rpc.blob_transfer import CHUNK_TIMEOUT_S, chunks, receive
from tartlet_common.rpc.error_proto import error_to_proto
from tartlet_common.rpc.paging import room
from tartlet_common.rpc.tenancy import Scope, scope_of
from tartlet_protos import common_pb2, control_pb2, programs_pb2, programs_pb2_grpc
from tartlet_runtime.abi.limits import MAX_NAME_BYTES
from tartlet_runtime.guests.sandboxed import WasmGuests
from tartlet_runtime.link.control_link import ControlLink
from tartlet_runtime.program.driver import Driver
from tartlet_runtime.program.mail import MAX_KEY_BYTES
from tartlet_runtime.program.program import Program
from tartlet_runtime.program.spec import State
from tartlet_runtime.serving.calls import Call
from tartlet_runtime.serving.launching import Launching
from tartlet_runtime.serving.listing import START, make_token, orphans_in, read_token
from tartlet_runtime.serving.programs import ProgramTable
from tartlet_runtime.serving.relay import Relay, is_relayed
from tartlet_runtime.serving.specs import specify

log = logging.getLogger(__name__)

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_Event = programs_pb2.ProgramEvent
_MAX_ITEMS = 4096  # of one call
_VALIDATED_AT_ONCE = 4
_LEAST_STREAMS = 256
_STREAMS_PER_PLACE = 2  # whoever launched a program, and someone else
_VERSION = version("tartlet")
_STORED_S = 10.0  # in which a message must be stored


class ProgramsService(programs_pb2_grpc.ProgramsServicer):
    """Translates calls to the table; every item of a request gets an answer of its own."""

    def __init__(
        self,
        table: ProgramTable,
        driver: Driver,
        link: ControlLink,
        launching: Launching,
        relay: Relay,
        wasm: WasmGuests | None,
        capacity: int,
        incarnation: str,
    ) -> None:
        """`wasm` None: only native programs run (tests)."""
        self._table = table
        self._driver = driver
        self._link = link
        self._launching = launching
        self._sources, self._recorded, self._reader = launching.sources, launching.recorded, launching.reader
        self._relay = relay
        self._wasm = wasm
        self._capacity = capacity
        self._incarnation = incarnation
        self._validating = asyncio.Semaphore(_VALIDATED_AT_ONCE)
        self._streams = 0
        self._max_streams = max(_LEAST_STREAMS, _STREAMS_PER_PLACE * capacity)

    # ---- launching ----

    async def Validate(  # noqa: N802 - gRPC's name
        self, request: programs_pb2.ValidateRequest, context: _Context
    ) -> programs_pb2.ValidateReply:
        """Check a source as a launch would, and for Python its syntax."""
        digest = request.source.digest or hashlib.sha256(request.source.data).hexdigest()
        async with self._validating:
            return await self._validate(request, digest)

    async def _validate(self, request: programs_pb2.ValidateRequest, digest: str) -> programs_pb2.ValidateReply:
        try:
            spec = specify(programs_pb2.LaunchSpec(), await self._sources.resolve(request.source), self._table.limits)
            if self._table.maker(spec) is None:
                await self._table.compile(spec)
            if spec.language == common_pb2.Source.PYTHON and self._wasm is not None:
                await self._wasm.check_python(spec.source, spec.filename, spec.limits.cpu_slice_s)
        except TartletError as e:
            return programs_pb2.ValidateReply(digest=digest, error=error_to_proto(e))
        return programs_pb2.ValidateReply(digest=spec.digest)

    async def Upload(  # noqa: N802 - gRPC's name
        self, request_iterator: AsyncIterator[common_pb2.BlobChunk], context: _Context
    ) -> programs_pb2.ValidateReply:
        """Keep a large source for launches that name its digest."""
        try:
            return programs_pb2.ValidateReply(digest=await self._sources.upload(request_iterator))
        except TartletError as e:
            return programs_pb2.ValidateReply(error=error_to_proto(e))

    async def ExportJournal(  # type: ignore[override]  # noqa: N802 - gRPC's name; a generator can't time its writes
        self, request: programs_pb2.ExportJournalRequest, context: _Context
    ) -> None:
        """Stream the journal of a run."""
        async with self._recorded.slots:
            try:
                data, _ = await self._recorded.fetch(request.program_id, scope_of(context))
                for chunk in chunks(data):
                    async with asyncio.timeout(CHUNK_TIMEOUT_S):  # a client that doesn't read keeps others waiting
                        await context.write(chunk)
            except TimeoutError:
                await abort(context, grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineExceeded(deadline_s=CHUNK_TIMEOUT_S))
            except TartletError as e:
                await abort(context, grpc.StatusCode.FAILED_PRECONDITION, e)

    async def ImportJournal(  # noqa: N802 - gRPC's name
        self, request_iterator: AsyncIterator[common_pb2.BlobChunk], context: _Context
    ) -> programs_pb2.ImportJournalReply:
        """Store the journal of an ended run."""
        recorded = self._recorded
        try:
            async with recorded.slots:
                _, data = await receive(request_iterator, recorded.limit_bytes, _full)
                return programs_pb2.ImportJournalReply(program_id=await recorded.put(data, scope_of(context)))
        except TartletError as e:
            return programs_pb2.ImportJournalReply(error=error_to_proto(e))

    async def ReadJournal(  # noqa: N802 - gRPC's name
        self, request: programs_pb2.ReadJournalRequest, context: _Context
    ) -> programs_pb2.ReadJournalReply:
        """Return some turns of a recorded run, from this runtime's store or that of the program's runtime."""
        scope = scope_of(context)
        try:
            try:
                page = await self._reader.read(request, scope, self._table.known(request.program_id, scope))
            except UnknownProgram:
                if is_relayed(context):
                    raise
                return await self._relay.read_journal(request, scope)
        except TartletError as e:
            return programs_pb2.ReadJournalReply(error=error_to_proto(e))
        return programs_pb2.ReadJournalReply(page_json=page)

    async def Launch(  # noqa: N802 - gRPC's name
        self, request: programs_pb2.LaunchRequest, context: _Context
    ) -> AsyncIterator[programs_pb2.ProgramEvents]:
        """Launch many, answer each, then stream the output of those with `attach`."""
        await _few(context, "specs", len(request.specs))
        scope = scope_of(context)
        launching: asyncio.Task[None] | None = None
        with self._stream(len(request.specs)) as call:
            try:
                if call.refused:
                    pass
                elif len(request.specs) == 1 and self._launching.at_once(request.specs[0], call, 0, scope):
                    self._driver.turn_now()
                else:
                    launching = asyncio.create_task(self._launching.all(request.specs, call, scope))
                async for events in call.messages():
                    yield events
            finally:
                if launching is not None:
                    launching.cancel()
                    await asyncio.wait([launching])

    @contextlib.contextmanager
    def _stream(self, items: int) -> Iterator[Call]:
        """Open a call's stream of events. Events wait in memory for a slow client, so such calls are bounded."""
        call = Call(self._driver, expected=items, asked_s=self._table.now_s)
        self._streams += 1
        try:
            if self._streams > self._max_streams:
                call.refuse(Overloaded(what="this runtime's table of event streams", limit=self._max_streams))
            yield call
        finally:
            self._streams -= 1
            call.close()

    # ---- running programs ----

    async def Attach(  # noqa: N802 - gRPC's name
        self, request: programs_pb2.AttachRequest, context: _Context
    ) -> AsyncIterator[programs_pb2.ProgramEvents]:
        """Stream the output of programs from offsets on; an unknown program is answered with REJECTED."""
        await _few(context, "programs", len(request.programs))
        scope = scope_of(context)
        elsewhere: list[tuple[int, programs_pb2.AttachTo]] = []
        with self._stream(len(request.programs)) as call:
            for index, wanted in enumerate(() if call.refused else request.programs):
                program = self._table.known(wanted.program_id, scope)
                if program is None:
                    elsewhere.append((index, wanted))
                    continue
                call.accept(index, program.program_id)
                call.watch(program.output, index, wanted.offset)
                if wanted.tie and program.spec.tied:
                    grace_s = self._table.client_grace_s if wanted.client or is_relayed(context) else 0.0
                    call.tie(None, program.tie, wanted.client, grace_s)
            if elsewhere and is_relayed(context):
                self._relay.refuse(call, elsewhere, scope)
            elif elsewhere:
                self._relay.attach(call, elsewhere, scope)
            async for events in call.messages():
                yield events

    async def Send(  # noqa: N802 - gRPC's name
        self, request: programs_pb2.SendRequest, context: _Context
    ) -> programs_pb2.SendReply:
        """Send messages to programs."""
        await _few(context, "items", len(request.items))
        errors: list[TartletError | None] = []
        elsewhere: list[int] = []
        sent: dict[int, Program] = {}
        scope = scope_of(context)
        for place, item in enumerate(request.items):
            program = self._table.known(item.program_id, scope)
            if program is None:
                errors.append(_absent(item.program_id, context))
                elsewhere.append(place)
            elif program.state >= State.ENDING and not (program.goes_on or program.mail.knows(item.key)):
                errors.append(UnknownProgram(program=f"{item.program_id}: it has ended"))
            else:
                errors.append(None)
                sent[place] = program
        for place, error in (await hear(sent, request.items)).items():
            errors[place] = error
        if elsewhere and not is_relayed(context):
            answers = await self._relay.send([request.items[i] for i in elsewhere], scope)
            for place, answer in zip(elsewhere, answers, strict=True):
                errors[place] = answer
        return programs_pb2.SendReply(errors=map(error_to_proto, errors))

    async def Kill(  # noqa: N802 - gRPC's name
        self, request: programs_pb2.KillRequest, context: _Context
    ) -> programs_pb2.KillReply:
        """End programs. Ending a program again is no error."""
        await _few(context, "program_ids", len(request.program_ids))
        errors: list[TartletError | None] = []
        elsewhere: list[int] = []
        scope = scope_of(context)
        for place, program_id in enumerate(request.program_ids):
            program = self._table.known(program_id, scope)
            if program is not None:
                program.end(ProgramKilled(reason=request.reason[:MAX_NAME_BYTES] or "on request"))
                errors.append(None)
            else:
                errors.append(_absent(program_id, context))
                elsewhere.append(place)
        if elsewhere and not is_relayed(context):
            answers = await self._relay.kill([request.program_ids[i] for i in elsewhere], request.reason, scope)
            for place, answer in zip(elsewhere, answers, strict=True):
                errors[place] = answer
        return programs_pb2.KillReply(errors=map(error_to_proto, errors))

    async def Leave(  # noqa: N802 - gRPC's name
        self, request: programs_pb2.LeaveRequest, context: _Context
    ) -> programs_pb2.LeaveReply:
        """End the programs whose client says that it won't come back."""
        await _few(context, "items", len(request.items))
        scope = scope_of(context)
        elsewhere = []
        for item in request.items:
            program = self._table.known(item.program_id, scope)
            if program is None:
                elsewhere.append(item)
            else:
                program.tie.leave(item.client)
        if elsewhere and not is_relayed(context):
            await self._relay.leave(elsewhere, scope)
        return programs_pb2.LeaveReply()

    async def List(  # noqa: N802 - gRPC's name
        self, request: programs_pb2.ListRequest, context: _Context
    ) -> programs_pb2.ListReply:
        """Return a page: programs of this runtime, then of each other runtime, each with an equal share of the page."""
        try:
            places = read_token(request.page_token)
        except TartletError as e:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, e)
        scope, here = scope_of(context), self._table.address
        located = control_pb2.LocateReply() if is_relayed(context) else await self._located(scope)
        runtimes = list(dict.fromkeys(located.runtimes))
        others = [a for a in runtimes if a != here and (places is None or a in places)]
        share = room(request.page_bytes) // (1 + len(others))
        reply, more = programs_pb2.ListReply(), {}
        if places is None or here in places:
            infos, rest = self._table.page(request, scope, (places or {}).get(here, START), share)
            await self._add_pages(infos)
            reply.programs.extend(infos)
            if rest is not None:
                more[here] = rest
        if places is None:
            reply.programs.extend(orphans_in(located, request, scope, self._table.unix_s))
        if others:
            asked = programs_pb2.ListRequest(all=request.all, tenant=request.tenant, page_bytes=share)
            theirs, behind = await self._relay.list(asked, {a: (places or {}).get(a) for a in others}, scope)
            reply.MergeFrom(theirs)
            more |= behind
        if places is not None and not is_relayed(context):  # they had more, and control knows them no longer
            reply.unreachable.extend(places.keys() - set(others) - {here})
        if places is None and runtimes:
            await self._relay.drop_all_but(runtimes)
        reply.next_page_token = make_token(more)
        return reply

    async def _located(self, scope: Scope) -> control_pb2.LocateReply:
        """Return the addresses of all runtimes and the programs without one, or none while control can't be reached."""
        try:
            return await self._link.locate([], scope)
        except Unavailable:
            return control_pb2.LocateReply()

    async def _add_pages(self, infos: Sequence[programs_pb2.ProgramInfo]) -> None:
        """Fill in how many pages programs hold, unless control can't be reached."""
        try:
            located = await self._link.locate([info.program_id for info in infos])
        except Unavailable:
            return
        for info, pages in zip(infos, located.pages, strict=True):
            info.pages = pages

    async def RuntimeState(  # noqa: N802 - gRPC's name
        self, request: programs_pb2.RuntimeStateRequest, context: _Context
    ) -> programs_pb2.RuntimeStateReply:
        """Return the state of this runtime and, relayed, of control; or its models alone, without asking control."""
        if request.models_only:
            told = self._table.models_told(scope_of(context).tenant) if self._link.connected else ""
            return programs_pb2.RuntimeStateReply(control_connected=self._link.connected, control_state_json=told)
        return programs_pb2.RuntimeStateReply(
            version=_VERSION,
            incarnation=self._incarnation,
            running=self._table.num_live,
            capacity=self._capacity,
            control_connected=self._link.connected,
            control_state_json=await self._link.state_json(scope_of(context)),
            component=self._wasm.component if self._wasm is not None else "",
            boundary=self._wasm.boundary if self._wasm is not None else "",
            spares=self._wasm.host.num_spares if self._wasm is not None else 0,
            memory_bytes=self._table.ledger.bound_bytes,
            memory_source=self._table.ledger.source,
            memory_taken_bytes={use.value: taken for use, taken in self._table.ledger.taken.items()},
        )


async def _few(context: _Context, what: str, count: int) -> None:
    """Refuse a call of too many items: a message can hold millions of empty ones, and all other calls would wait."""
    if count > _MAX_ITEMS:
        error = InvalidArgument(argument=what, detail=f"{count} of them, one call takes {_MAX_ITEMS}")
        await abort(context, grpc.StatusCode.INVALID_ARGUMENT, error)


async def hear(programs: dict[int, Program], items: Sequence[programs_pb2.SendItem]) -> dict[int, TartletError]:
    """Give programs their messages, by place, and wait until these can't be lost. Returns the errors of the others."""
    errors: dict[int, TartletError] = {}
    waiting: dict[int, asyncio.Future[None]] = {}
    for place, program in programs.items():
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            program.hear(items[place].message, items[place].key[:MAX_KEY_BYTES], partial(_set, taken))
        except TartletError as e:
            errors[place] = e
        else:
            if not taken.done():
                waiting[place] = taken
    if waiting:
        await asyncio.wait(waiting.values(), timeout=_STORED_S)
    late = Unavailable(what="the journals' store", detail="it has not stored the message yet")
    return errors | {place: late for place, taken in waiting.items() if not taken.done()}


def _set(taken: asyncio.Future[None]) -> None:
    if not taken.done():
        taken.set_result(None)


def _full(_size: int, limit: int) -> TartletError:
    return JournalFull(limit=limit)


def _absent(program_id: str, context: _Context) -> TartletError:
    """Return the error of a program that isn't here. Who relays a call has just heard that it is: it moves then."""
    if is_relayed(context):
        return Unavailable(what=f"program {program_id[:64]}", detail="it is on its way to another runtime")
    return UnknownProgram(program=program_id)
