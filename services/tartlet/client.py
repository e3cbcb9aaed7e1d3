"""`AsyncClient`: programs launched, followed, messaged and ended from asyncio; the command line stands on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
import grpc.aio

from tartlet import _convert
from tartlet.events import Accepted, Ended, Event
from tartlet.model import CatalogueEntry, LaunchSpec, ProgramInfo, RuntimeState, Source
from tartlet_common import rpc, telemetry, wire
from tartlet_common import telemetry_names as names
from tartlet_common.errors import (
    Disconnected,
    FrameTooLarge,
    InternalError,
    InvalidArgument,
    RuntimeLost,
    TartletError,
    Unavailable,
)
from tartlet_common.paths import run_dir
from tartlet_protos import common_pb2, control_pb2, control_pb2_grpc, programs_pb2, programs_pb2_grpc

T = TypeVar("T")
Answers = list[Accepted | TartletError]  # named here: in the class, `list` is a method
Infos = list[ProgramInfo]
Errors = list[TartletError | None]
Entries = list[CatalogueEntry]
Digests = list[str]

_LAUNCH_BYTES = 3 << 20  # specs of one Launch message, below the 4 MiB it may have


class Run:
    """A program that is followed: iterate its events, or wait for its end.

    Made by `AsyncClient.run` and `AsyncClient.attach`.
    """

    def __init__(self, program_id: str, guest_token: str, stream: Any, address: str) -> None:
        self.program_id = program_id
        self.guest_token = guest_token  # admits the process of a native program
        self.ended: Ended | None = None
        self._stream = stream
        self._address = address

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Events as they come; `Ended` is the last.

        Raises:
            RuntimeLost: the runtime went away with the program.
        """
        try:
            async for frame in self._stream:
                for message in frame.events:
                    event = _convert.event_from_proto(message)
                    if isinstance(event, Accepted):
                        continue
                    yield event
                    if isinstance(event, Ended):
                        self.ended = event
                        return
        except grpc.aio.AioRpcError as e:
            error = _from_rpc(e, self._address)
            raise (RuntimeLost() if isinstance(error, Unavailable) else error) from e
        raise RuntimeLost  # the stream ended before the program did

    async def wait(self) -> Ended:
        """Read and drop the other events until the program has ended."""
        async for _ in self:
            pass
        if self.ended is None:
            raise InternalError(detail="the events ended without an end")
        return self.ended

    def cancel(self) -> None:
        """Stop following. A program of `AsyncClient.run` ends with it; one that was launched goes on."""
        self._stream.cancel()


class AsyncClient:
    """A connection to a runtime, and to control's catalogue where that is used.

    Example:
        ::

            async with tartlet.AsyncClient() as client:
                run = await client.run(tartlet.Source.from_file("hello.py"), args=["--n", "3"])
                async for event in run:
                    if isinstance(event, tartlet.Message):
                        print(event.text, end="", flush=True)
                print(run.ended.usage.per_token_s)

    Args:
        address: the runtime's, `unix:/path` or `host:port`; default: the one of a local `tartlet serve`.
        control: control's, for the catalogue; default: beside a Unix runtime's socket.
        tls: needed for TCP.

    Every method raises a `TartletError`: `Unavailable` when nobody answers at the address, else what it documents.
    """

    def __init__(self, address: str | None = None, *, control: str | None = None, tls: rpc.Tls | None = None) -> None:
        self.address = address or f"unix:{run_dir()}/runtime.sock"
        self._control_address = control
        self._tls = tls
        self._channel: grpc.aio.Channel | None = None
        self._control_channel: grpc.aio.Channel | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; programs started with `run` end."""
        for channel in (self._channel, self._control_channel):
            if channel is not None:
                await channel.close()
        self._channel = self._control_channel = None

    # ---- programs -----------------------------------------------------------------------------------------------

    async def run(
        self, source: Source | None = None, args: Sequence[str] = (), *, spec: LaunchSpec | None = None
    ) -> Run:
        """Launch a program that ends when this client goes away, and follow it.

        Args:
            source: the program, where `spec` isn't given.
            args: its arguments.
            spec: all there is to say about a launch.

        Raises:
            TartletError: the launch was rejected.
        """
        spec = spec or LaunchSpec(source=source, args=args)
        with telemetry.tracer().start_as_current_span(names.SPAN_CLIENT_LAUNCH):
            request = programs_pb2.LaunchRequest(specs=[_convert.launch_to_proto(spec, attach=True, tie=True)])
            return await self._follow(self._programs().Launch(_checked(request)))

    async def launch(
        self, source: Source | None = None, args: Sequence[str] = (), *, spec: LaunchSpec | None = None
    ) -> Accepted:
        """Launch a program that goes on without this client; attach to it by its id.

        Raises:
            TartletError: the launch was rejected.
        """
        (answer,) = await self.launch_many([spec or LaunchSpec(source=source, args=args)])
        if isinstance(answer, TartletError):
            raise answer
        return answer

    async def launch_many(self, specs: Sequence[LaunchSpec]) -> Answers:
        """Launch many programs in few messages; answers in the order of `specs`, an error where one was rejected."""
        answers: Answers = []
        with telemetry.tracer().start_as_current_span(names.SPAN_CLIENT_LAUNCH):
            for request in _launch_requests(specs):
                with _translated(self.address):
                    async for frame in self._programs().Launch(request):
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
        """Launch many programs tied to this client on one stream; events with the index of their spec, as they come.

        A rejected spec gives its error. All specs together must fit one message (4 MiB).
        """
        request = programs_pb2.LaunchRequest(specs=[_convert.launch_to_proto(s, attach=True, tie=True) for s in specs])
        with _translated(self.address):
            async for frame in self._programs().Launch(_checked(request)):
                for message in frame.events:
                    try:
                        event: Event | TartletError = _convert.event_from_proto(message)
                    except TartletError as e:
                        event = e
                    yield message.index, event

    async def attach(self, program_id: str, offset: int = 0) -> Run:
        """Follow a program from an offset of its output on; ended programs too, for a while.

        Raises:
            UnknownProgram: there is none with this id.
        """
        target = programs_pb2.AttachTo(program_id=program_id, offset=offset)
        stream = self._programs().Attach(programs_pb2.AttachRequest(programs=[target]))
        return Run(program_id, "", stream, self.address)

    async def send(self, program_id: str, message: bytes | str) -> None:
        """Give a program a message; it gets it from `receive`.

        Raises:
            UnknownProgram: there is none with this id, or it has ended.
            InboxFull: it has too many unread ones.
        """
        (error,) = await self.send_many([(program_id, message)])
        if error is not None:
            raise error

    async def send_many(self, items: Sequence[tuple[str, bytes | str]]) -> Errors:
        """Give many programs messages; an error or None for each, in order."""
        request = programs_pb2.SendRequest(
            items=[
                programs_pb2.SendItem(program_id=p, message=m.encode() if isinstance(m, str) else m) for p, m in items
            ]
        )
        reply = await self._call(self._programs().Send(_checked(request)))
        return [wire.error_from_proto(e) for e in reply.errors]

    async def kill(self, program_id: str, reason: str = "") -> None:
        """End a program; it ends in `ProgramKilled`.

        Raises:
            UnknownProgram: there is none with this id.
        """
        request = programs_pb2.KillRequest(program_ids=[program_id], reason=reason)
        reply = await self._call(self._programs().Kill(request))
        error = wire.error_from_proto(reply.errors[0])
        if error is not None:
            raise error

    async def list(self, *, ended: bool = False, tenant: str = "") -> Infos:
        """Programs that run; with `ended` also those that have."""
        reply = await self._call(self._programs().List(programs_pb2.ListRequest(all=ended, tenant=tenant)))
        return [_convert.info_from_proto(m) for m in reply.programs]

    async def validate(self, source: Source) -> str:
        """Check a source without running it; its digest.

        Raises:
            InvalidSource, CorruptModule, SourceTooLarge: what is wrong with it.
        """
        request = programs_pb2.ValidateRequest(source=_convert.source_to_proto(source))
        reply = await self._call(self._programs().Validate(_checked(request)))
        error = wire.error_from_proto(reply.error)
        if error is not None:
            raise error
        return str(reply.digest)

    async def state(self) -> RuntimeState:
        """What the runtime says of itself, its control, the engines and models."""
        return _convert.state_from_proto(
            await self._call(self._programs().RuntimeState(programs_pb2.RuntimeStateRequest()))
        )

    # ---- catalogue ----------------------------------------------------------------------------------------------

    async def put(self, entries: Sequence[CatalogueEntry]) -> Digests:
        """Name programs in the catalogue; their digests.

        Raises:
            TartletError: the first one that was refused; the others may have been stored.
        """
        request = control_pb2.PutRequest(entries=[_convert.entry_to_proto(e) for e in entries])
        reply = await self._call(self._catalogue().Put(_checked(request)), self.control_address)
        for message in reply.errors:
            error = wire.error_from_proto(message)
            if error is not None:
                raise error
        return [str(d) for d in reply.digests]

    async def get(self, name: str, *, tenant: str = "", digest: str = "") -> CatalogueEntry:
        """A program of the catalogue with its source.

        Raises:
            UnknownInferlet: there is none of this name.
        """
        request = control_pb2.GetRequest(tenant=tenant, name=name, digest=digest)
        reply = await self._call(self._catalogue().Get(request), self.control_address)
        error = wire.error_from_proto(reply.error)
        if error is not None:
            raise error
        return _convert.entry_from_proto(reply.entry)

    async def delete(self, name: str, *, tenant: str = "") -> None:
        """Remove a program from the catalogue; running ones go on.

        Raises:
            UnknownInferlet: there is none of this name.
        """
        request = control_pb2.DeleteRequest(tenant=tenant, name=name)
        reply = await self._call(self._catalogue().Delete(request), self.control_address)
        error = wire.error_from_proto(reply.error)
        if error is not None:
            raise error

    async def catalogue(self, *, tenant: str = "") -> Entries:
        """The catalogue's programs, without their sources' data."""
        request = control_pb2.CatalogueListRequest(tenant=tenant)
        reply = await self._call(self._catalogue().List(request), self.control_address)
        return [_convert.entry_from_proto(m) for m in reply.entries]

    # ---- edges --------------------------------------------------------------------------------------------------

    @property
    def control_address(self) -> str:
        """Control's address.

        Raises:
            InvalidArgument: it wasn't given and can't be guessed.
        """
        if self._control_address is not None:
            return self._control_address
        path = rpc.unix_path(self.address)
        if path is None:
            raise InvalidArgument(argument="control", detail="give control's address to use the catalogue over TCP")
        return f"unix:{path.parent / 'control.sock'}"

    def _programs(self) -> Any:
        if self._channel is None:
            self._channel = rpc.make_channel(self.address, self._tls)
        return programs_pb2_grpc.ProgramsStub(self._channel)

    def _catalogue(self) -> Any:
        if self._control_channel is None:
            self._control_channel = rpc.make_channel(self.control_address, self._tls)
        return control_pb2_grpc.CatalogueStub(self._control_channel)

    async def _call(self, call: Awaitable[Any], address: str | None = None) -> Any:
        with _translated(address or self.address):
            return await call

    async def _follow(self, stream: Any) -> Run:
        """Read a Launch stream up to its answer."""
        with _translated(self.address):
            frame = await stream.read()
            while frame is not grpc.aio.EOF and not frame.events:
                frame = await stream.read()
        if frame is grpc.aio.EOF:
            raise InternalError(detail="a launch was not answered")
        first = _convert.event_from_proto(frame.events[0])
        if not isinstance(first, Accepted):
            raise InternalError(detail=f"a launch was answered with {first}")
        rest = programs_pb2.ProgramEvents(events=frame.events[1:])
        return Run(first.program_id, first.guest_token, _Resumed(rest, stream), self.address)


class _Resumed:
    """A stream whose first frame has been read in part."""

    def __init__(self, first: programs_pb2.ProgramEvents, stream: Any) -> None:
        self._first = first
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[programs_pb2.ProgramEvents]:
        if self._first.events:
            yield self._first
        while (frame := await self._stream.read()) is not grpc.aio.EOF:  # read(), as before: grpc allows one style
            yield frame

    def cancel(self) -> None:
        """Cancel the call."""
        self._stream.cancel()


def _checked(request: T) -> T:
    """The request, if one message can carry it."""
    size = request.ByteSize()  # type: ignore[attr-defined]
    if size > rpc.MAX_MESSAGE_BYTES:
        raise FrameTooLarge(size=size, limit=rpc.MAX_MESSAGE_BYTES)
    return request


def _launch_requests(specs: Sequence[LaunchSpec]) -> Iterator[programs_pb2.LaunchRequest]:
    """Requests of at most `_LAUNCH_BYTES`, or of one spec."""
    request, size = programs_pb2.LaunchRequest(), 0
    for spec in specs:
        message = _convert.launch_to_proto(spec, attach=False, tie=False)
        if request.specs and size + message.ByteSize() > _LAUNCH_BYTES:
            yield request
            request, size = programs_pb2.LaunchRequest(), 0
        request.specs.append(message)
        size += message.ByteSize()
    if request.specs:
        yield _checked(request)


@contextmanager
def _translated(address: str) -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as e:
        raise _from_rpc(e, address) from e


def _from_rpc(e: grpc.aio.AioRpcError, address: str) -> TartletError:
    """The typed error of a call that failed; servers put theirs into the trailing metadata `tartlet-error-bin`."""
    for key, value in e.trailing_metadata() or ():
        if key == "tartlet-error-bin" and isinstance(value, bytes):
            error = wire.error_from_proto(common_pb2.Error.FromString(value))
            if error is not None:
                return error
    match e.code():
        case grpc.StatusCode.UNAVAILABLE:
            return Unavailable(what=f"the server at {address}", detail=e.details() or "no connection")
        case grpc.StatusCode.CANCELLED:
            return Disconnected()
        case _:
            return InternalError(detail=f"{e.code().name}: {e.details()}")
