"""Streams whose frames travel on a Unix socket of their own if both ends are on one machine (ADR 20).

The stream is opened and ended by gRPC: its Hello, its error, and the detection of a peer that is gone stay there. In
its Hello a server may offer a socket that lies beside its own. From then on the frames of both directions travel on
that socket, and the gRPC stream is idle. Both kinds of stream have the methods that roles use (`read`, `write`,
`done_writing`), so roles don't depend on the kind.
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
"""Seconds that a server waits for a client to use an offered socket, and for a connection to show its ticket."""
LAST_FRAMES_S: Final = 1.0
"""Seconds that frames may still arrive after the gRPC stream beside the socket has ended."""
_MAX_STRANGERS: Final = 64


class Stream(Protocol):
    """The methods that both kinds of stream have."""

    async def read(self) -> Any:
        """Return the next frame, or `grpc.aio.EOF`."""

    async def write(self, frame: Any, /) -> None:
        """Send a frame."""


class JoinedStream:
    """A client's end: frames travel on the socket, and the gRPC call gives the reason for the end of the stream."""

    def __init__(self, call: Any, socket: FrameSocket, refused: Callable[[], None]) -> None:
        """`refused` is called if the server closes the socket before it has sent a frame, without an error."""
        self._call = call
        self._socket = socket
        self._refused: Callable[[], None] | None = refused
        self.done_writing = socket.done_writing
        loop = asyncio.get_running_loop()
        # gRPC notices a peer that is gone or has ended the call; the peer's last frames may still be on their way
        call.add_done_callback(lambda _: loop.call_later(LAST_FRAMES_S, socket.close))

    async def read(self) -> Any:
        """Return the next frame or `grpc.aio.EOF`, or raise the error that ends the call.

        Raises:
            ConnectionError: the bytes on the socket are not a frame.
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
            ConnectionResetError: the other end has closed. It is raised late, so that `read` can give the reason.
        """
        try:
            await self._socket.write(frame)
        except ConnectionResetError:
            await asyncio.sleep(LAST_FRAMES_S)
            raise

    def cancel(self) -> None:
        """End the call and close the socket."""
        self._socket.close()
        self._call.cancel()


class Joiner:
    """Accepts offers on the client's side: knows where the sockets are, and whether the next Hello asks for one."""

    def __init__(self, address: str) -> None:
        """`address` is the server's address as this client dials it; the offered sockets lie beside that path."""
        path = unix_path(address)
        self._path = None if path is None else _beside(path)
        self._failed = False

    @property
    def wanted(self) -> bool:
        """Whether to ask for a socket: on one machine, unless the last offered socket couldn't be used."""
        return self._path is not None and not self._failed

    async def join(self, call: Any, offer: common_pb2.FrameSocketOffer, kind: type[Message]) -> Any:
        """Return the stream that the server's Hello asks for: the offered socket, or else `call` itself.

        Raises:
            ConnectionError: no process listens on the offered socket.
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
    """A server's offer of a socket for one stream."""

    def __init__(self, context: Any, kind: type[Message]) -> None:
        self._context = context
        self._kind = kind
        self.offer = common_pb2.FrameSocketOffer()
        """Goes into Hello; without a ticket it offers no socket."""
        self.socket: asyncio.Future[FrameSocket] = asyncio.get_running_loop().create_future()

    async def joined(self) -> Any:
        """Return the stream after Hello: the offered socket, or the gRPC call if no socket was offered.

        Raises:
            ConnectionError: the client doesn't connect to the socket.
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
    """A server's end: listens beside the server's socket and gives each connection to the stream it was offered for."""

    def __init__(self, path: Path | None) -> None:
        """`path` is the gRPC server's socket. None, or a path too long for a socket beside it: no socket is offered."""
        beside = None if path is None else _beside(path)
        self._path = beside if beside is not None and socket_fits(beside) else None
        self._server: asyncio.Server | None = None
        self._open = asyncio.Event()
        self._expected: dict[bytes, asyncio.Future[FrameSocket]] = {}
        self._strangers: dict[FrameSocket, None] = {}  # connections without a ticket yet, oldest first

    async def open(self) -> None:
        """Listen; call this once the server's own socket is claimed. Streams wait for it."""
        if self._path is not None:
            loop = asyncio.get_running_loop()
            try:
                self._server = await loop.create_unix_server(self._stranger, self._path)
            except OSError as e:
                log.warning("frames go over gRPC: no socket at %s: %s", self._path, e)
        self._open.set()

    async def close(self) -> None:
        """Stop listening."""
        for socket in list(self._strangers):
            self._show_out(socket)
        if self._server is not None and self._path is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)

    @contextlib.asynccontextmanager
    async def beside(self, context: Any, kind: type[Message], *, wanted: bool) -> AsyncIterator[Beside]:
        """Yield the offer for one stream, before its Hello is sent; close the socket at the end."""
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
