"""Native programs: processes of the client, which connect to `guest.sock`.

Frames both ways are `u32 length, u8 kind, body`, little-endian; the length counts kind and body. A connection begins
with HELLO and the token from the answer to the launch. Records, limits and journals are those of sandboxed programs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import cast

from tartlet_common.config.paths import check_socket, make_private
from tartlet_common.errors.registry import (
    InternalError,
    MalformedSubmission,
    ProgramFailed,
    TartletError,
    UnknownProgram,
)
from tartlet_runtime.abi.guest import Delivery, GuestOutcome, Phase, clip_traceback
from tartlet_runtime.abi.limits import MAX_SUBMISSION_BYTES
from tartlet_runtime.program.program import Program
from tartlet_runtime.program.spec import State
from tartlet_runtime.wasm.determinism import GuestRandom

log = logging.getLogger(__name__)

HELLO, SUBMIT, WAIT, END = 1, 2, 3, 4
WELCOME, DELIVERY, ERROR = 16, 17, 18

_HEAD = Struct("<IB")
_LENGTH = Struct("<I")
_WAIT = Struct("<IQ")
_NUMBER = Struct("<I")
_MAX_FRAME_BYTES = MAX_SUBMISSION_BYTES + 1
_MAX_HELLO_BYTES = 257
HELLO_TIMEOUT_S = 10.0


def frame(kind: int, body: bytes) -> bytes:
    r"""Build one frame.

    Example:
        >>> frame(HELLO, b"token")
        b'\x06\x00\x00\x00\x01token'
    """
    return _HEAD.pack(len(body) + 1, kind) + body


class NativeGuest:
    """The runtime's end of one native program; exists before its process connects."""

    sleep_us = 0
    outcome: GuestOutcome | None = None

    def __init__(self, program: Program, forget: Callable[[str], None]) -> None:
        """`forget` drops the token."""
        self.program = program
        self.token = secrets.token_urlsafe(24)
        self.connection: _Connection | None = None
        self.said_end = False
        self._forget = forget

    def step(self) -> Phase:
        """Do nothing: the guest computes in its own process."""
        return Phase.WAITING

    def deliver(self, delivery: Delivery) -> None:
        """Send the answer to the guest's wait."""
        if self.connection is not None:
            self.connection.send(DELIVERY, delivery.data)

    def wake(self) -> None:
        """Do nothing: the guest sleeps in its own process."""

    def pause(self, *, paused: bool) -> None:
        """Stop reading from the process, or go on."""
        if self.connection is not None:
            self.connection.hold(program=paused)

    def close(self, error: TartletError | None) -> None:
        """Tell the process the error, and hang up."""
        self._forget(self.token)
        if self.connection is not None:
            if error is not None:
                self.connection.send(ERROR, _NUMBER.pack(error.number) + error.to_json())
            self.connection.hang_up()

    def welcome(self) -> bytes:
        """Return the body of WELCOME, the first frame to the process."""
        spec = self.program.spec
        fields = {"program_id": spec.program_id, "filename": spec.filename, "args": spec.args, "model": spec.model}
        # What a sandboxed program draws first, so that a seed means the same on both sides of the sandbox.
        fields["random"] = GuestRandom(spec.seed).take(16).hex()
        return json.dumps(fields).encode()

    def frame(self, kind: int, body: bytes) -> None:
        """Act on a frame from the process. Errors end the program."""
        program = self.program
        if program.state is not State.RUNNING:
            return
        try:
            if kind == SUBMIT:
                program.on_submit(body)
            elif kind == WAIT and len(body) == _WAIT.size:
                self._wait(*_WAIT.unpack(body))
            elif kind == END and body:
                self._ended(ok=bool(body[0]), text=body[1:].decode("utf-8", "replace"))
            else:
                raise MalformedSubmission(detail=f"a frame of kind {kind} and {len(body)} bytes")
        except TartletError as e:
            program.end(e)
        except Exception as e:  # our own bug: this program ends of it, no other
            log.exception("program %s", program.program_id)
            program.end(InternalError(detail=repr(e)))

    def lost(self) -> None:
        """End the program unless it has ended: its process hung up."""
        if not self.said_end:
            self.program.end(ProgramFailed(traceback="the program's process ended without a result"))

    def _wait(self, max_records: int, timeout_us: int) -> None:
        if self.program.wait.max_records is not None:
            raise MalformedSubmission(detail="a wait inside a wait")
        delivery = self.program.on_wait(max_records, timeout_us)
        if delivery is not None:
            self.deliver(delivery)

    def _ended(self, *, ok: bool, text: str) -> None:
        error = None if ok else ProgramFailed(traceback=clip_traceback(text))
        self.program.end_after_backlog(error, text if ok else "")
        self.said_end = True


class NativeServer:
    """Listens on the guest socket, and makes the guests of native programs."""

    def __init__(self, path: Path) -> None:
        """`path` of the socket; its directory is private."""
        self._path = path
        self._guests: dict[str, NativeGuest] = {}
        self._connections: set[_Connection] = set()
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            PermissionDenied: somebody else owns the socket's directory.
            InvalidConfig: its path is longer than a socket's may be.
        """
        check_socket(self._path)
        make_private(self._path.parent)
        self._path.unlink(missing_ok=True)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Connection(self), str(self._path))

    async def stop(self) -> None:
        """Close the socket and all connections."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.hang_up()
        self._path.unlink(missing_ok=True)

    def make_guest(self, program: Program) -> NativeGuest:
        """Make the guest of a native program; its process connects with `token`."""
        guest = NativeGuest(program, self._forget)
        self._guests[guest.token] = guest
        return guest

    def connected(self, connection: _Connection) -> None:
        """Keep a connection for `stop`."""
        self._connections.add(connection)

    def disconnected(self, connection: _Connection) -> None:
        """Forget a connection."""
        self._connections.discard(connection)

    def claim(self, token: str) -> NativeGuest | None:
        """Return the guest that waits for this token. A token is good for one connection."""
        return self._guests.pop(token, None)

    def _forget(self, token: str) -> None:
        self._guests.pop(token, None)


class _Connection(asyncio.Protocol):
    """One process on the guest socket. Whatever it sends, it can end no program but its own."""

    def __init__(self, server: NativeServer) -> None:
        self._server = server
        self._buffer = bytearray()
        self._guest: NativeGuest | None = None
        self._held = False  # the program's output goes unread
        self._full = False  # the process doesn't read what we send
        self._over = False  # we hung up: nothing that it still says counts
        self._transport: asyncio.Transport
        self._hello: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._server.connected(self)
        self._hello = asyncio.get_running_loop().call_later(HELLO_TIMEOUT_S, self.hang_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.disconnected(self)
        self._stop_hello_timer()
        self._parse(rest=True)  # it may have ended without reading what we told it, which broke the connection early
        if self._guest is not None:
            self._guest.lost()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._parse()

    def pause_writing(self) -> None:
        self._full = True
        self._hold()

    def resume_writing(self) -> None:
        self._full = False
        self._hold()

    def hold(self, *, program: bool) -> None:
        """Stop taking frames, or go on."""
        self._held = program
        self._hold()

    def send(self, kind: int, body: bytes) -> None:
        """Write one frame."""
        if not self._transport.is_closing():
            self._transport.write(frame(kind, body))

    def hang_up(self) -> None:
        """Close when everything written has been sent."""
        self._over = True
        if not self._transport.is_closing():
            self._transport.close()

    def _hold(self) -> None:
        if self._transport.is_closing():
            return
        if self._held or self._full:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()
            asyncio.get_running_loop().call_soon(self._parse)

    def _parse(self, *, rest: bool = False) -> None:
        """Act on the frames in the buffer. With `rest`, also while held back, because no more will come."""
        buffer = self._buffer
        at = 0
        while len(buffer) - at >= _HEAD.size and not self._over and (rest or not (self._held or self._full)):
            (length,) = _LENGTH.unpack_from(buffer, at)
            if not 1 <= length <= (_MAX_HELLO_BYTES if self._guest is None else _MAX_FRAME_BYTES):
                self._refuse(MalformedSubmission(detail=f"a frame of {length} bytes"))
                return
            end = at + _LENGTH.size + length
            if end > len(buffer):
                break
            kind, body = buffer[at + _LENGTH.size], bytes(buffer[at + _HEAD.size : end])
            at = end
            if self._guest is None:
                self._greet(kind, body)
            else:
                self._guest.frame(kind, body)
        del buffer[:at]

    def _greet(self, kind: int, body: bytes) -> None:
        guest = self._server.claim(body.decode("utf-8", "replace")) if kind == HELLO else None
        if guest is None:
            self._refuse(UnknownProgram(program="with this token"))
            return
        self._stop_hello_timer()
        self._guest = guest
        guest.connection = self
        self.send(WELCOME, guest.welcome())

    def _refuse(self, error: TartletError) -> None:
        if self._guest is not None:
            self._guest.program.end(error)
            return
        self.send(ERROR, _NUMBER.pack(error.number) + error.to_json())
        self.hang_up()

    def _stop_hello_timer(self) -> None:
        if self._hello is not None:
            self._hello.cancel()
            self._hello = None
