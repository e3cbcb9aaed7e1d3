"""`AsyncClient` launches, follows, messages and ends programs from asyncio; the command line uses it."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import cache, partial
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import grpc.aio

from tartlet import _convert, environment
from tartlet._calls import (
    answered,
    checked,
    launch_requests,
    launch_spec,
    send_requests,
    sent,
    streamed,
    translated,
    upload_all,
)
from tartlet._control_calls import ControlCalls
from tartlet._following import Following
from tartlet._given import all_of, check_id, check_offset, check_texts, check_turns
from tartlet._run import Run, launched
from tartlet._ties import Ties
from tartlet.events import Accepted, Event
from tartlet.model import LaunchSpec, ProgramInfo, RuntimeState, Source, check_source
from tartlet_common.config.paths import run_dir
from tartlet_common.errors.registry import Disconnected, InternalError, InvalidArgument, TartletError
from tartlet_common.rpc import endpoints, error_proto
from tartlet_common.rpc.paging import pages
from tartlet_common.rpc.tenancy import Scope
from tartlet_common.telemetry import names, telemetry
from tartlet_protos import programs_pb2, programs_pb2_grpc

__all__ = ["AsyncClient", "Run"]

log = logging.getLogger("tartlet")

T = TypeVar("T")
Answers = list[Accepted | TartletError]  # named here: in the class, `list` is a method
Infos = list[ProgramInfo]
Errors = list[TartletError | None]


def is_http(address: str | None) -> bool:
    """Return whether an address is that of a gateway."""
    return (address or "").startswith(("http://", "https://"))


@cache
def over_http(cls: type[Any]) -> type[Any]:
    """Return a client's class with its calls over HTTP.

    Raises:
        InvalidArgument: the library that speaks HTTP isn't installed.
    """
    try:
        from tartlet._http.calls import HttpCalls
    except ImportError as e:
        remedy = "pip install 'tartlet[http]'"
        raise InvalidArgument(argument="address", detail=f"clients over HTTP need httpx: {e}", remedy=remedy) from e
    return type(cls.__name__, (HttpCalls, cls), {"__doc__": cls.__doc__})


class AsyncClient(ControlCalls):
    """A connection to a runtime, and to control's catalogue where that is used.

    Example:
        ::

            async with tartlet.AsyncClient() as client:
                run = await client.run(tartlet.Source.from_file("hello.py"), args=["--n", "3"])
                async for event in run:
                    if isinstance(event, tartlet.Message | tartlet.Stdout):
                        print(event.text, end="", flush=True)
                print(run.ended.usage.per_token_s)

    Args:
        address: the runtime's address, `unix:/path` or `host:port`, or that of a gateway, `https://host:port`;
            default: that of a local `tartlet serve`.
        control: control's address, for the catalogue; default: $TARTLET_CLIENT_CONTROL, or else the socket beside the
            runtime's Unix socket.
        tls: the client's identity, needed for TCP; default: the files that $TARTLET_CLIENT_TLS_CERTIFICATE, _KEY and
            _AUTHORITY name, in the release's domain $TARTLET_CLIENT_TLS_DOMAIN. When the files change, new calls use a
            new connection.
        key: an API key, for an address `http://...` or `https://...` of a gateway; default: $TARTLET_CLIENT_KEY. Such a
            client needs `pip install 'tartlet[http]'`.
        tenant: act for this tenant alone, even if the certificate or the socket allows others.
        retry_s: seconds during which a launch with an idempotency key is repeated while there is no answer, and a run
            of `run` or `attach` takes up a broken connection again; 0: never.

    Every method raises a `TartletError`: `Unavailable` if there is no answer at the address, else the errors that the
    method documents.
    """

    def __new__(cls, address: str | None = None, **options: Any) -> Self:
        """Make the client that the address asks for: over HTTP for `http://...` and `https://...`, else over gRPC."""
        del options
        made: Self = object.__new__(over_http(cast("Any", cls)) if is_http(address) else cls)
        return made

    def __init__(
        self,
        address: str | None = None,
        *,
        control: str | None = None,
        tls: endpoints.Tls | None = None,
        tenant: str | None = None,
        key: str | None = None,
        retry_s: float = 30.0,
    ) -> None:
        if key is not None:
            raise InvalidArgument(argument="key", detail="keys are for gateways, at http:// or https:// addresses")
        self.address = address or f"unix:{run_dir()}/runtime.sock"
        self._control_address = control or environment.control()
        self._tls = tls or environment.identity()
        self._metadata = Scope(tenant).metadata
        self._retry_s = retry_s
        self._dialer: endpoints.Dialer | None = None
        self._stub: tuple[grpc.aio.Channel, Any] | None = None
        self._control_dialer: endpoints.Dialer | None = None
        self._ties = Ties(lambda *a, **k: self._programs().Leave(*a, metadata=self._metadata, **k))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; programs started with `run` end."""
        await self._ties.close()
        for dialer in (self._dialer, self._control_dialer):
            if dialer is not None:
                await dialer.close()
        self._dialer = self._control_dialer = None

    # ---- programs -----------------------------------------------------------------------------------------------

    async def run(
        self, source: Source | None = None, args: Sequence[str] = (), *, spec: LaunchSpec | None = None
    ) -> Run:
        """Launch a program that ends when this client goes away, and follow it, also to another runtime.

        If the connection breaks, the run goes on behind the last event, within the runtime's `client_grace_s`.

        Args:
            source: the program; not with `spec`.
            args: the program's arguments; not with `spec`.
            spec: the whole launch, in place of `source` and `args`.

        Raises:
            InvalidArgument: `source` is not a `Source`, or another argument stands beside `spec`.
            TartletError: the server rejected the launch.
        """
        spec = launch_spec(source, args, spec)
        with telemetry.tracer().start_as_current_span(names.SPAN_CLIENT_LAUNCH):
            await self._upload([spec])
            key = Ties.new_key() if self._retry_s else b""
            launch = _convert.launch_to_proto(spec, attach=True, tie=True, client=key)
            request = checked(programs_pb2.LaunchRequest(specs=[launch]))
            stream = self._programs().Launch(request, metadata=self._metadata)
            return await launched(stream, self.address, self._attacher(key), self._retry_s, self._ties, key)

    async def launch(
        self, source: Source | None = None, args: Sequence[str] = (), *, spec: LaunchSpec | None = None
    ) -> Accepted:
        """Launch a program that goes on without this client; `attach` follows it by its id.

        A launch with an idempotency key is repeated for `retry_s` if its answer is lost, or if the server can't launch
        just now (`Unavailable`); it starts at most one program.

        Raises:
            TartletError: the server rejected the launch.
        """
        (answer,) = await self.launch_many([launch_spec(source, args, spec)])
        if isinstance(answer, TartletError):
            raise answer
        return answer

    async def launch_many(self, specs: Sequence[LaunchSpec]) -> Answers:
        """Launch many programs in few messages; return an answer or an error for each spec, in order.

        If every spec has an idempotency key, launches whose answer is lost or `Unavailable` are repeated for `retry_s`.
        """
        specs = all_of(LaunchSpec, "specs", specs)
        keyed = all(spec.idempotency_key for spec in specs)
        with telemetry.tracer().start_as_current_span(names.SPAN_CLIENT_LAUNCH):
            retry_s = self._retry_s if keyed else 0.0
            return await answered(lambda left: self._launch([specs[i] for i in left]), len(specs), retry_s)

    async def _launch(self, specs: Sequence[LaunchSpec]) -> Answers:
        answers: Answers = []
        await self._upload(specs)
        for request in launch_requests(specs):
            with translated(self.address):
                async for frame in self._programs().Launch(request, metadata=self._metadata):
                    for message in frame.events:
                        try:
                            event = _convert.event_from_proto(message)
                        except TartletError as e:
                            answers.append(e)
                        else:
                            if isinstance(event, Accepted):
                                answers.append(event)
        if len(answers) != len(specs):
            raise InternalError(detail=f"{len(specs)} launches, {len(answers)} answers")
        return answers

    async def run_many(self, specs: Sequence[LaunchSpec]) -> AsyncIterator[tuple[int, Event | TartletError]]:
        """Launch many programs that end with this client; yield their events, each with the index of its spec.

        The programs end when the connection breaks, or when the loop over the events is left and closed. A rejected
        spec yields its error. All specs together must fit one message (4 MiB).
        """
        specs = all_of(LaunchSpec, "specs", specs)
        await self._upload(specs)
        request = programs_pb2.LaunchRequest(specs=_convert.launches_to_proto(specs, attach=True, tie=True))
        with translated(self.address):
            async for frame in self._programs().Launch(checked(request), metadata=self._metadata):
                for message in frame.events:
                    try:
                        event: Event | TartletError = _convert.event_from_proto(message)
                    except TartletError as e:
                        event = e
                    yield message.index, event

    async def attach(self, program_id: str, offset: int = 0, *, retry_s: float | None = None) -> Run:
        """Follow a program from an offset of its output on; the output of an ended program is kept for a while.

        If the connection breaks, the run goes on behind its last event, for `retry_s` seconds (None: the client's
        `retry_s`). Output that the server has dropped meanwhile, because other clients had read it, shows as a gap in
        the events' offsets.

        Raises:
            InvalidArgument: the offset is negative, or the id is malformed.
            UnknownProgram: no program has this id.
        """
        check_id(program_id)
        check_offset(offset)
        patience_s = self._retry_s if retry_s is None else retry_s
        attach = partial(self._attacher(), program_id)
        following = Following(attach(offset), self.address, offset=offset, attach=attach, retry_s=patience_s)
        return Run(program_id, "", following)

    def _attacher(self, client: bytes = b"") -> Callable[[str, int], Any]:
        self._programs()

        def attach(program_id: str, offset: int) -> Any:
            if self._dialer is None:
                raise Disconnected(remedy="Attach with a client that isn't closed.")
            target = programs_pb2.AttachTo(program_id=program_id, offset=offset, tie=bool(client), client=client)
            return self._programs().Attach(programs_pb2.AttachRequest(programs=[target]), metadata=self._metadata)

        return attach

    async def send(self, program_id: str, message: bytes | str) -> None:
        """Send a message to a program, which reads it with `receive`.

        Raises:
            UnknownProgram: no program has this id, or the program has ended.
            InboxFull: the program has too many unread messages.
        """
        (error,) = await self.send_many([(program_id, message)])
        if error is not None:
            raise error

    async def send_many(self, items: Sequence[tuple[str, bytes | str]]) -> Errors:
        """Send messages to many programs, each once; return an error or None for each, in order.

        Messages that a runtime may not have taken are sent again for the client's `retry_s`.
        """
        errors: Errors = []
        for request in list(send_requests(items)):  # a message that is too long is refused before any is sent
            errors += await sent(lambda: self._programs().Send, request, self.address, self._metadata, self._retry_s)
        return errors

    async def kill(self, program_id: str, reason: str = "") -> None:
        """End a program; its error is `ProgramKilled`.

        Raises:
            UnknownProgram: no program has this id.
        """
        check_id(program_id)
        check_texts(reason=reason)
        request = programs_pb2.KillRequest(program_ids=[program_id], reason=reason)
        reply = await self._call(self._programs().Kill(request, metadata=self._metadata))
        error = error_proto.error_from_proto(reply.errors[0])
        if error is not None:
            raise error

    async def list(self, *, ended: bool = False, tenant: str = "") -> Infos:
        """List running programs, with `ended` also ended ones. A warning names each runtime that doesn't answer."""

        def page(token: str) -> Awaitable[Any]:
            request = programs_pb2.ListRequest(all=ended, tenant=tenant, page_token=token)
            return self._call(self._programs().List(request, metadata=self._metadata))

        infos: Infos = []
        async for reply in pages(page):
            infos += [_convert.info_from_proto(m) for m in reply.programs]
            for address in reply.unreachable:
                log.warning("the runtime at %s does not answer: its programs are missing in the listing", address)
        return infos

    async def validate(self, source: Source) -> str:
        """Check a source without running it; return its digest.

        Raises:
            InvalidArgument, InvalidSource, CorruptModule, SourceTooLarge: the source's fault.
        """
        check_source(source)
        await self._upload([LaunchSpec(source=source)])
        request = programs_pb2.ValidateRequest(source=_convert.source_or_digest(source))
        reply = await self._call(self._programs().Validate(checked(request)))
        error = error_proto.error_from_proto(reply.error)
        if error is not None:
            raise error
        return str(reply.digest)

    async def state(self) -> RuntimeState:
        """Return the state of the runtime, of its control, of engines and of models."""
        return _convert.state_from_proto(
            await self._call(self._programs().RuntimeState(programs_pb2.RuntimeStateRequest(), metadata=self._metadata))
        )

    async def export_journal(self, program_id: str) -> bytes:
        """Return the journal of a run, from the store of the server's runtime.

        Raises:
            UnknownProgram: the store has no such journal.
        """
        check_id(program_id)
        request = programs_pb2.ExportJournalRequest(program_id=program_id)
        with translated(self.address):
            chunks = self._programs().ExportJournal(request, metadata=self._metadata)
            return b"".join([chunk.data async for chunk in chunks])

    async def read_journal(
        self, program_id: str, first: int = 1, *, count: int = 50, texts: bool = False
    ) -> dict[str, Any]:
        """Return some turns of a recorded run: the calls that its program gave, and what it was told then.

        Args:
            program_id: the run.
            first: number of the first turn, from 1.
            count: how many turns, at most 200.
            texts: also tell what programs, models and clients wrote: prompts, answers and messages.

        Returns:
            The object that docs/gateway.md describes at `GET /v1/programs/ID/journal`.

        Raises:
            NoJournal: the program keeps none, or it is gone.
            UnknownProgram: no program has this id.
        """
        check_id(program_id)
        check_turns(first, count)
        request = programs_pb2.ReadJournalRequest(program_id=program_id, first=first, count=count, texts=texts)
        reply = await self._call(self._programs().ReadJournal(request, metadata=self._metadata))
        error = error_proto.error_from_proto(reply.error)
        if error is not None:
            raise error
        page: dict[str, Any] = json.loads(reply.page_json)
        return page

    async def import_journal(self, journal: bytes) -> str:
        """Put the journal of an ended run into the store of the server's runtime; return the run's id.

        Raises:
            InvalidSource, InvalidArgument, PermissionDenied, JournalFull: the server doesn't take it.
        """
        call = self._programs().ImportJournal(streamed(journal), metadata=self._metadata)
        reply = await self._call(call)
        error = error_proto.error_from_proto(reply.error)
        if error is not None:
            raise error
        return str(reply.program_id)

    # ---- edges --------------------------------------------------------------------------------------------------

    def _programs(self) -> Any:
        if self._dialer is None:
            self._dialer = endpoints.Dialer(self.address, self._tls, role="runtime")
        channel = self._dialer.current()
        if self._stub is None or self._stub[0] is not channel:  # making a stub takes as long as a call
            self._stub = channel, programs_pb2_grpc.ProgramsStub(channel)
        return self._stub[1]

    async def _upload(self, specs: Iterable[LaunchSpec]) -> None:
        with translated(self.address):
            await upload_all(self._programs(), specs)
