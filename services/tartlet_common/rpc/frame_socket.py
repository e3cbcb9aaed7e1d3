"""Frames on a Unix socket, in both directions: each is its length (u32, little-endian) and a protobuf message.

`frame_streams` uses such sockets in place of gRPC streams, so a `FrameSocket` has the methods of a stream that roles
use. The memory of unread frames is bounded.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

import grpc.aio
from google.protobuf.message import DecodeError, Message

from tartlet_common.errors.registry import FrameTooLarge, MalformedSubmission
from tartlet_common.rpc.sizes import MAX_FRAME_BYTES as MAX_FRAME_BYTES  # noqa: PLC0414 - callers find it here

TICKET_BYTES: Final = 16
"""Bytes of the first frame that a server receives on a socket."""
_READ_AHEAD_BYTES: Final = 1 << 20
_FRAMES_A_TURN: Final = 16
_FRAME_COST_BYTES: Final = 64
"""Memory of a kept frame beside its bytes, so that the number of empty frames is bounded too."""
_LENGTH: Final = struct.Struct("<I")


def with_length(data: bytes) -> bytes:
    """Put a frame's length before its bytes."""
    return _LENGTH.pack(len(data)) + data


class FrameSocket(asyncio.Protocol):
    """One end of a frame socket."""

    def __init__(self, kind: type[Message] | None, first: Callable[[FrameSocket, bytes], None] | None = None) -> None:
        """`kind` is the message type of the frames that are read; `first` receives the first frame as bytes instead."""
        self.kind = kind
        self._first = first
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._frames: deque[bytes] = deque()
        self._held = 0  # memory of the unread frames, in bytes
        self._this_turn = 0  # frames that were read without waiting
        self._paused = False
        self._ended = False  # no more frames come
        self._closed = False  # no more frames can be sent
        self._failure: MalformedSubmission | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    async def read(self) -> Any:
        """Return the next frame, or `grpc.aio.EOF` when the other end sends no more.

        Raises:
            MalformedSubmission: the bytes are not a frame.
        """
        if self._frames:
            self._this_turn += 1
            if self._this_turn > _FRAMES_A_TURN:  # other tasks need the loop, too
                self._this_turn = 0
                await asyncio.sleep(0)
        while not self._frames:
            self._this_turn = 0
            if self._failure is not None:
                raise self._failure
            if self._ended:
                return grpc.aio.EOF
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        data = self._frames.popleft()
        self._held -= len(data) + _FRAME_COST_BYTES
        if self._paused and self._held < _READ_AHEAD_BYTES and self._transport is not None and self._failure is None:
            self._paused = False
            self._transport.resume_reading()
        assert self.kind is not None
        try:
            return self.kind.FromString(data)
        except DecodeError as e:
            raise MalformedSubmission(detail=f"a frame that can't be read: {e}") from e

    async def write(self, frame: Message) -> None:
        """Send one frame; wait while the other end has too much unread.

        Raises:
            ConnectionResetError: the other end has closed.
            FrameTooLarge: the frame is larger than `MAX_FRAME_BYTES`; nothing was sent.
        """
        if self._transport is None or self._closed:
            raise ConnectionResetError("the other end has closed the frames' socket")
        data = frame.SerializeToString()
        if len(data) > MAX_FRAME_BYTES:
            raise FrameTooLarge(size=len(data), what="bytes in a frame", limit=MAX_FRAME_BYTES)
        self._transport.write(with_length(data))
        if not self._writable.is_set():
            await self._writable.wait()

    async def done_writing(self) -> None:
        """Tell the other end that no more frames come."""
        if self._transport is not None and not self._closed:
            self._closed = True
            self._transport.write_eof()

    def close(self) -> None:
        """Close the socket; frames that were written are still sent."""
        if self._transport is not None:
            self._transport.close()
        self._end(closed=True)

    # ---- called by the loop -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport of the open socket."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop has classes of its own

    def data_received(self, data: bytes) -> None:
        """Cut the received bytes into frames."""
        buffer = self._buffer
        buffer += data
        at, end = 0, len(buffer)
        while at + _LENGTH.size <= end:
            (size,) = _LENGTH.unpack_from(buffer, at)
            if self._first is not None and size != TICKET_BYTES:
                self.close()
                return
            if size > MAX_FRAME_BYTES:
                self._fail(MalformedSubmission(detail=f"a frame of {size} bytes"))
                return
            if at + _LENGTH.size + size > end:
                break
            at += _LENGTH.size + size
            self._keep(bytes(buffer[at - size : at]))
        if at:
            del buffer[:at]
        if self._held >= _READ_AHEAD_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """Note that the other end sends no more; it may still read."""
        self._end(closed=False)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the other end is gone."""
        self._end(closed=True)

    def pause_writing(self) -> None:
        """Make `write` wait: the other end has too much unread."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let `write` go on: the other end reads again."""
        self._writable.set()

    def _keep(self, data: bytes) -> None:
        if self._first is not None:
            first, self._first = self._first, None
            first(self, data)
            return
        self._frames.append(data)
        self._held += len(data) + _FRAME_COST_BYTES
        self._wake()

    def _fail(self, failure: MalformedSubmission) -> None:
        """Stop receiving; `read` returns the frames that have come, then raises the failure."""
        self._failure = failure
        if self._transport is not None and not self._paused:
            self._transport.pause_reading()
        self._paused = True
        self._wake()

    def _end(self, *, closed: bool) -> None:
        self._ended = True
        if closed:
            self._closed = True
            self._writable.set()
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
