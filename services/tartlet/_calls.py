"""Helpers of every call of the client: they check its size, type its errors and upload its large sources."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc
import grpc.aio

from tartlet import _convert
from tartlet._given import check_id, check_kind, message_bytes
from tartlet.model import MAX_SOURCE_BYTES, LaunchSpec, Source
from tartlet_common.errors.registry import (
    Disconnected,
    FrameTooLarge,
    InternalError,
    InvalidArgument,
    SourceTooLarge,
    TartletError,
    Unavailable,
)
from tartlet_common.rpc import endpoints, error_proto
from tartlet_common.rpc.aborts import ERROR_KEY
from tartlet_common.rpc.blob_transfer import chunks
from tartlet_protos import common_pb2, programs_pb2

T = TypeVar("T")
M = TypeVar("M", programs_pb2.LaunchSpec, programs_pb2.SendItem)

log = logging.getLogger("tartlet")

FIRST_PAUSE_S = 0.1
LAST_PAUSE_S = 1.0
PORTION_BYTES = 3 << 20  # bytes of specs or items in one message, below the message limit of 4 MiB
AT_ONCE = 4096
_KEY_BYTES = 12  # of a sending


def launch_spec(source: Source | None, args: Sequence[str], spec: LaunchSpec | None) -> LaunchSpec:
    """Build the launch that a call's arguments describe.

    Raises:
        InvalidArgument: another argument stands beside `spec`, or `source` is not a `Source`.
    """
    if spec is None:
        return LaunchSpec(source=source, args=args)
    if source is not None or args:
        raise InvalidArgument(argument="spec", detail="it names source and arguments itself: give it alone")
    check_kind(LaunchSpec, spec=spec)
    return spec


async def upload(stub: Any, source: Source) -> None:
    """Upload a source in chunks if it is large; `stub` is that of Programs or Catalogue.

    Raises:
        SourceTooLarge: the source exceeds the client's limit (nothing is sent) or the server's (refused at its first
            chunk).
    """
    if len(source.data) > _convert.UPLOAD_ABOVE_BYTES:
        await upload_data(stub, source.data)


async def upload_all(programs: Any, specs: Iterable[LaunchSpec]) -> None:
    """Upload what launches name by digest: large sources, each once, and the journals of forks. As `upload`."""
    large = [s.source for s in specs if s.source is not None and len(s.source.data) > _convert.UPLOAD_ABOVE_BYTES]
    for source in {source.digest: source for source in large}.values():  # large ones only: a digest takes time
        await upload(programs, source)
    for journal in {s.fork.journal for s in specs if s.fork is not None and s.fork.journal}:
        await upload_data(programs, journal)


async def upload_data(stub: Any, data: bytes) -> None:
    """Upload a source, or the journal of a fork, for a launch that names its digest. Raises what `upload` does."""
    if len(data) > MAX_SOURCE_BYTES:
        raise SourceTooLarge(size=len(data), limit=MAX_SOURCE_BYTES)

    reply = await stub.Upload(streamed(data))
    error = error_proto.error_from_proto(reply.error)
    if error is not None:
        raise error


async def streamed(data: bytes) -> AsyncIterator[common_pb2.BlobChunk]:
    """Yield data in chunks, for a call that takes a stream."""
    for chunk in chunks(data):
        yield chunk


def checked(request: T) -> T:
    """Return the request if it fits one message."""
    size = request.ByteSize()  # type: ignore[attr-defined]
    if size > endpoints.MAX_MESSAGE_BYTES:
        raise FrameTooLarge(size=size, what="bytes in a request", limit=endpoints.MAX_MESSAGE_BYTES)
    return request


def launch_requests(specs: Sequence[LaunchSpec]) -> Iterator[programs_pb2.LaunchRequest]:
    """Divide launches into requests that each fit one message."""
    for portion in _portions(_convert.launches_to_proto(specs, attach=False, tie=False)):
        yield checked(programs_pb2.LaunchRequest(specs=portion))


def send_requests(items: Sequence[tuple[str, bytes | str]]) -> Iterator[programs_pb2.SendRequest]:
    """Divide messages into requests that each fit one message, as do their answers even if every item fails."""
    for portion in _portions(_send_item(p, m) for p, m in items):
        yield checked(programs_pb2.SendRequest(items=portion))


def _send_item(program_id: str, message: bytes | str) -> programs_pb2.SendItem:
    check_id(program_id)
    return programs_pb2.SendItem(program_id=program_id, message=message_bytes(message), key=os.urandom(_KEY_BYTES))


def _portions(messages: Iterable[M]) -> Iterator[list[M]]:
    """Divide messages, in order, into portions of at most `AT_ONCE` messages and `PORTION_BYTES` bytes."""
    portion: list[M] = []
    size = 0
    for message in messages:
        if portion and (size + message.ByteSize() > PORTION_BYTES or len(portion) == AT_ONCE):
            yield portion
            portion, size = [], 0
        portion.append(message)
        size += message.ByteSize()
    if portion:
        yield portion


async def repeated(call: Callable[[], Awaitable[T]], retry_s: float) -> T:
    """Make `call` and return its result; if the server doesn't answer, repeat it for up to `retry_s` from then on.

    Raises:
        Unavailable: the server did not answer in that time.
    """
    clock = asyncio.get_running_loop().time
    end_s: float | None = None
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            return await call()
        except (Unavailable, Disconnected) as e:
            end_s = end_s or clock() + retry_s
            if clock() + pause_s > end_s:
                raise _unanswered(e) from e
            log.info("sent again in %g s: %s", pause_s, e)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LAST_PAUSE_S)


async def answered(
    ask: Callable[[list[int]], Awaitable[Sequence[T]]],
    count: int,
    retry_s: float,
    may_come_back: Callable[[], bool] = lambda: True,
) -> list[T]:
    """Ask about many things, again about those whose answer is lost or `Unavailable`; return the answers, in order.

    Args:
        ask: asks about the things with these numbers.
        count: how many things there are.
        retry_s: for how long to ask again, in seconds from the first failure on.
        may_come_back: tells whether a server that didn't answer may do so later.

    Raises:
        Unavailable: the server did not answer in that time, or never. If it had answered before, its answers count.
    """
    clock = asyncio.get_running_loop().time
    end_s: float | None = None
    pause_s = FIRST_PAUSE_S
    answers: dict[int, T] = {}
    left = list(range(count))
    while True:
        try:
            answers |= zip(left, await ask(left), strict=True)
        except (Unavailable, Disconnected) as e:
            end_s = end_s or clock() + retry_s
            if clock() + pause_s > end_s or not may_come_back():
                if answers:
                    return [answers[i] for i in range(count)]
                raise _unanswered(e) from e
            log.info("sent again in %g s: %s", pause_s, e)
        else:
            end_s = end_s or clock() + retry_s
            left = [i for i in left if isinstance(answers[i], Unavailable)]
            if not left or clock() + pause_s > end_s:
                return [answers[i] for i in range(count)]
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LAST_PAUSE_S)


def _unanswered(error: Unavailable | Disconnected) -> Unavailable:
    return error if isinstance(error, Unavailable) else Unavailable(what="the server", detail="it ended the call")


async def sent(
    send: Callable[[], Any], request: programs_pb2.SendRequest, address: str, metadata: Any, retry_s: float
) -> list[TartletError | None]:
    """Send messages, again those that a runtime may not have taken; return an error or None for each, in order.

    Args:
        send: returns the call, over the connection of that moment.
        request: the messages, each with a key.
        address: the server's, for errors.
        metadata: of the call.
        retry_s: for how long to send again, in seconds from the first failure on.

    Raises:
        Unavailable: the server did not answer in that time, or never.
    """

    async def ask(left: list[int]) -> list[TartletError | None]:
        some = programs_pb2.SendRequest(items=[request.items[i] for i in left])
        with translated(address):
            reply = await send()(some, metadata=metadata)
        return [error_proto.error_from_proto(error) for error in reply.errors]

    return await answered(ask, len(request.items), retry_s, lambda: may_come_back(address))


def may_come_back(address: str) -> bool:
    """Return whether a server that doesn't answer may do so again: its directory still has the socket."""
    path = endpoints.unix_path(address)
    return path is None or path.exists()


@contextmanager
def translated(address: str) -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as e:
        raise from_rpc(e, address) from None


def from_rpc(e: grpc.aio.AioRpcError, address: str) -> TartletError:
    """Return the typed error of a failed call; servers put it into the trailing metadata `tartlet-error-bin`."""
    for key, value in e.trailing_metadata() or ():
        if key == ERROR_KEY and isinstance(value, bytes):
            error = error_proto.error_from_proto(common_pb2.Error.FromString(value))
            if error is not None:
                return error
    match e.code():
        case grpc.StatusCode.UNAVAILABLE:
            return Unavailable(what=f"the server at {address}", detail=_why(address, e.details() or "no connection"))
        case grpc.StatusCode.UNIMPLEMENTED:
            detail = f"who answers there is another role, or of another release ({e.details()})"
            return Unavailable(what=f"the server at {address}", detail=detail)
        case grpc.StatusCode.CANCELLED:
            return Disconnected()
        case _:
            return InternalError(detail=f"{e.code().name}: {e.details()}")


def _why(address: str, details: str) -> str:
    """Say briefly why there is no answer at `address`; gRPC's own text is long."""
    path = endpoints.unix_path(address)
    if path is not None and not path.exists():
        return "there is no such socket"
    why = details.removeprefix("failed to connect to all addresses; last error: ")
    if "handshake" in why:
        return (
            f"{why}; it runs, but its certificate and the one shown to it must be of one authority, and the name right"
        )
    return why
