"""Streams whose frames have a Unix socket of their own, where both ends are on one machine (ADR 20).

The stream stays gRPC's: it says Hello and why it ends, and notices a peer that is gone. In its Hello a server may offer
a socket beside its own; from then on the frames of both directions travel there, and gRPC's part lies idle. Both ends
have what roles use of a gRPC stream (`read`, `write`, `done_writing`): they needn't know.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final, Protocol

import grpc.aio
from google.protobuf.message import Message

from tartlet_common.config.paths import socket_fits
from tartlet_common.errors.registry import MalformedSubmission
from tartlet_common.rpc.endpoints import unix_path
from tartlet_common.rpc.frame_socket import TICKET_BYTES, FrameSocket, with_length
from tartlet_protos import common_pb2

log = logging.getLogger("tartlet")

JOIN_TIMEOUT_S: Final = 5.0
"""So long an offered socket is waited for, and a connection may take to show its ticket."""
LAST_FRAMES_S: Final = 1.0
"""So long frames may still come when the stream beside them has ended."""
_MAX_STRANGERS: Final = 64


class Stream(Protocol):
    """Either kind, as far as both are used alike."""

    async def read(self) -> Any:
        """The next frame, or `grpc.aio.EOF`."""

    async def write(self, frame: Any, /) -> None:
        """Send one."""


class JoinedStream:
    """A client's end: frames on the socket; why the stream ends is still the call's to say."""

    def __init__(self, call: Any, socket: FrameSocket, refused: Callable[[], None]) -> None:
        """`refused` is called if the server lets go of the socket before it has sent anything, and says no more."""
        self._call = call
        self._socket = socket
        self._refused: Callable[[], None] | None = refused
        self.done_writing = socket.done_writing
        loop = asyncio.get_running_loop()
        # a peer that is gone, which gRPC notices, or one that has ended the call: its last frames may be on their way
        call.add_done_callback(lambda _: loop.call_later(LAST_FRAMES_S, socket.close))

    async def read(self) -> Any:
        """The next frame, `grpc.aio.EOF`, or the error that the call ends in.

        Raises:
            ConnectionError: what came is no frame.
        """
        try:
            frame = await self._socket.read()
        except MalformedSubmission as e:
            raise ConnectionError(str(e)) from e
        if frame is grpc.aio.EOF:
            frame = await self._call.read()
            if self._refused is not None:
                self._refused()
        else:
            self._refused = None
        return frame

    async def write(self, frame: Message) -> None:
        """Send one frame.

        Raises:
            ConnectionResetError: the other end has closed; not before the reader has had time to learn why.
        """
        try:
            await self._socket.write(frame)
        except ConnectionResetError:
            await asyncio.sleep(LAST_FRAMES_S)
            raise

    def cancel(self) -> None:
        """End the call and let go of the socket."""
        self._socket.close()
        self._call.cancel()


class Joiner:
    """A client's side of offers: where the sockets are, and whether one is wanted in the next Hello."""

    def __init__(self, address: str) -> None:
        """`address`: the server's, as it is dialled here: the socket lies beside that, wherever the server sees it."""
        path = unix_path(address)
        self._path = None if path is None else _beside(path)
        self._failed = False

    @property
    def wanted(self) -> bool:
        """On one machine, unless the last one that was offered couldn't be joined: then the call carries the frames."""
        return self._path is not None and not self._failed

    async def join(self, call: Any, offer: common_pb2.FrameSocketOffer, kind: type[Message]) -> Any:
        """The stream of `call` as the server's Hello wants it: on the socket that it offers, else the call itself.

        Raises:
            ConnectionError: nobody listens there.
        """
        if not offer.ticket:
            self._failed = False
            return call
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(JOIN_TIMEOUT_S):
                transport, socket = await loop.create_unix_connection(lambda: FrameSocket(kind), str(self._path))
        except (OSError, TimeoutError) as e:
            self._refused()
            raise ConnectionError(f"the frames' socket {self._path}: {e}") from e
        transport.write(with_length(offer.ticket))
        return JoinedStream(call, socket, self._refused)

    def _refused(self) -> None:
        log.warning("frames go over gRPC: the socket %s can't be joined", self._path)
        self._failed = True


class Beside:
    """What a server's stream offers, and gets."""

    def __init__(self, context: Any, kind: type[Message]) -> None:
        self._context = context
        self._kind = kind
        self.offer = common_pb2.FrameSocketOffer()
        """For Hello; without a ticket nothing is offered."""
        self.socket: asyncio.Future[FrameSocket] = asyncio.get_running_loop().create_future()

    async def joined(self) -> Any:
        """The stream once Hello has been said: the socket that was offered, else the call itself.

        Raises:
            ConnectionError: the client doesn't come.
        """
        if not self.offer.ticket:
            return self._context
        try:
            async with asyncio.timeout(JOIN_TIMEOUT_S):
                socket = await self.socket
        except TimeoutError as e:
            raise ConnectionError("nobody has joined the frames' socket") from e
        socket.kind = self._kind
        return socket


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".frames")


class FrameListener:
    """A server's end: listens beside its socket and hands those that it has offered to the streams they belong to."""

    def __init__(self, path: Path | None) -> None:
        """`path`: of the gRPC server's own socket; None, or one that leaves no room for another: nothing is offered."""
        beside = None if path is None else _beside(path)
        self._path = beside if beside is not None and socket_fits(beside) else None
        self._server: asyncio.Server | None = None
        self._open = asyncio.Event()
        self._expected: dict[bytes, asyncio.Future[FrameSocket]] = {}
        self._strangers: dict[FrameSocket, None] = {}  # have shown no ticket yet, the oldest first

    async def open(self) -> None:
        """Listen; to be called once the server's own socket is claimed. Streams wait for it."""
        if self._path is not None:
            loop = asyncio.get_running_loop()
            try:
                self._server = await loop.create_unix_server(self._stranger, self._path)
            except OSError as e:
                log.warning("frames go over gRPC: no socket at %s: %s", self._path, e)
        self._open.set()

    async def close(self) -> None:
        """Listen no more."""
        for socket in list(self._strangers):
            self._show_out(socket)
        if self._server is not None and self._path is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)

    @contextlib.asynccontextmanager
    async def beside(self, context: Any, kind: type[Message], *, wanted: bool) -> AsyncIterator[Beside]:
        """For one stream, before its Hello is said: a socket to offer, which is closed in the end."""
        await self._open.wait()
        beside = Beside(context, kind)
        if self._server is not None and wanted:
            ticket = secrets.token_bytes(TICKET_BYTES)
            beside.offer = common_pb2.FrameSocketOffer(ticket=ticket)
            self._expected[ticket] = beside.socket
        try:
            yield beside
        finally:
            self._expected.pop(beside.offer.ticket, None)
            if beside.socket.done() and not beside.socket.cancelled():
                beside.socket.result().close()

    def _stranger(self) -> FrameSocket:
        socket = FrameSocket(None, self._ticket)
        self._strangers[socket] = None
        if len(self._strangers) > _MAX_STRANGERS:
            self._show_out(next(iter(self._strangers)))
        asyncio.get_running_loop().call_later(JOIN_TIMEOUT_S, self._show_out, socket)
        return socket

    def _show_out(self, socket: FrameSocket) -> None:
        if socket in self._strangers:
            del self._strangers[socket]
            socket.close()

    def _ticket(self, socket: FrameSocket, ticket: bytes) -> None:
        expected = self._expected.get(ticket)
        if expected is None or expected.done():
            self._show_out(socket)
        else:
            self._strangers.pop(socket, None)
            expected.set_result(socket)
