"""Runs a program outside the sandbox, as a guest over the runtime's socket.

Usage: python -m inferlet._running.native FILE [ARGS...]

The program is a process: prints go to the terminal, breakpoints work, and every module can be imported. Commands,
limits and journal are those of a program in the sandbox. TARTLET_GUEST_SOCKET says where the runtime listens, and
TARTLET_GUEST_TOKEN which launch this is. `tartlet run --native FILE` sets both. TARTLET_GUEST_ARCHIVE names the archive
of a program of several files; FILE is then the directory's name for tracebacks.

Frames are `u32 length, u8 kind, body`, little-endian. The length counts kind and body.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferlet._generated import abi
from inferlet._running import guest
from inferlet._running.native_loop import NativeLoop
from inferlet._wire import host
from inferlet._wire.channel import Channel, channel
from inferlet.errors import TartletError, Unavailable, from_wire

if TYPE_CHECKING:
    import socket

HELLO, SUBMIT, WAIT, END = 1, 2, 3, 4
WELCOME, DELIVERY, ERROR = 16, 17, 18
_HEAD = struct.Struct("<IB")
_WAIT = struct.Struct("<IQ").pack
_NUMBER = struct.Struct("<I")
_NOTHING = struct.pack("<HHIII", abi.ABI_VERSION, 0, 0, 0, 0)  # a delivery without records
_MOST_SAID = 3 << 20  # what fits a frame; the runtime takes less, and says so


class SocketBackend:
    """`submit` and `wait` as frames on a stream socket."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self.waits = False

    def fileno(self) -> int:
        """Return the socket's file descriptor; it is readable when the runtime has said something."""
        return self._stream.fileno()

    def send(self, kind: int, body: bytes) -> None:
        """Write one frame."""
        self._stream.sendall(_HEAD.pack(1 + len(body), kind) + body)

    def receive(self, kind: int) -> bytes:
        """Read one frame of this kind; return its body.

        Raises:
            TartletError: the runtime has sent an error instead.
            Unavailable: the runtime has gone away.
        """
        head = self._read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise Unavailable(what="the runtime", detail="it closed the connection")
        length, got = _HEAD.unpack(head)
        body = self._read(length - 1)
        if got == ERROR:
            (number,) = _NUMBER.unpack_from(body)
            raise from_wire(number, body[4:])
        if got != kind or len(body) < length - 1:
            raise Unavailable(what="the runtime", detail=f"it sent a frame of kind {got}")
        return body

    def submit(self, data: bytes) -> None:
        """Hand over commands."""
        self.send(SUBMIT, data)

    def wait(self, max_records: int, timeout_us: int) -> bytes:
        """Block until the runtime delivers."""
        if not self.waits:
            self.begin_wait(max_records, timeout_us)
        elif timeout_us != host.NO_TIMEOUT_US:  # the wait that was begun may last longer
            import select  # not at the top: the sandbox has no sockets

            if not select.select([self._stream], [], [], timeout_us / 1e6)[0]:
                return _NOTHING
        return self.take()

    def begin_wait(self, max_records: int, timeout_us: int) -> None:
        """Ask for a delivery."""
        self.send(WAIT, _WAIT(max_records, timeout_us))
        self.waits = True

    def take(self) -> bytes:
        """Return the delivery of the wait that was begun; block until it is there."""
        data = self.receive(DELIVERY)
        self.waits = False
        return data

    def _read(self, size: int) -> bytes:
        """Read so many bytes, fewer at the end of the stream; none ahead, so that polling tells the truth."""
        parts = bytearray()
        while len(parts) < size and (part := self._stream.recv(size - len(parts))):
            parts += part
        return bytes(parts)


class OwnThreadChannel(Channel):
    """The channel of a native program, which refuses commands of other threads than the program's."""

    __slots__ = ()

    def record(self, *args: Any, **kwargs: Any) -> int:
        """Append one command, see `Channel.record`.

        Raises:
            RuntimeError: another thread gives it.
        """
        if threading.current_thread() is not threading.main_thread():
            told = "calls of inferlet belong to the thread in which the program began"
            raise RuntimeError(f"{told}: give them there with asyncio.run_coroutine_threadsafe(coroutine, loop)")
        return super().record(*args, **kwargs)


def connect(path: str, token: str) -> tuple[SocketBackend, dict[str, Any]]:
    """Connect to the runtime; return the connection and what the runtime says of the launch.

    Raises:
        Unavailable: no runtime listens at `path`.
        TartletError: the runtime refuses the token.
    """
    import socket  # not at the top: the sandbox has none

    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.connect(path)
    except OSError as error:
        stream.close()
        raise Unavailable(what=f"the runtime at {path}", detail=str(error)) from error
    backend = SocketBackend(stream)
    backend.send(HELLO, token.encode())
    welcome: dict[str, Any] = json.loads(backend.receive(WELCOME))
    return backend, welcome


def main(argv: list[str]) -> int:
    """Run FILE with ARGS; return the exit status."""
    path, args = argv[0], argv[1:]
    try:
        backend, welcome = connect(os.environ["TARTLET_GUEST_SOCKET"], os.environ["TARTLET_GUEST_TOKEN"])
    except TartletError as error:
        print(f"{error}\n{error.remedy}", file=sys.stderr)
        return 1
    host.backend = backend
    guest.loop_type = NativeLoop
    guest.start(args)
    channel.__class__ = OwnThreadChannel
    guest.seed_random(bytes.fromhex(welcome["random"]))
    try:
        result = guest.execute(_source(path), path, args)
        guest.flush()
    except BaseException as error:  # noqa: BLE001 - whatever a program raises is its result
        text: str = getattr(error, "guest_traceback", None) or f"{type(error).__name__}: {error}"
        print(text, file=sys.stderr)
        _end(backend, b"\0" + text.encode(errors="replace")[-_MOST_SAID:])
        return 1
    _end(backend, b"\1" + (result or "").encode(errors="replace")[:_MOST_SAID])
    return 0


def _source(path: str) -> str:
    """Return the program; a file may import its neighbours, as any script."""
    archive = os.environ.pop("TARTLET_GUEST_ARCHIVE", "")
    if archive:
        return Path(archive).read_bytes().decode("latin-1")
    sys.path.insert(0, str(Path(path).resolve().parent))
    return Path(path).read_text(encoding="utf-8")


def _end(backend: SocketBackend, body: bytes) -> None:
    """Tell the runtime how the program ended. If the runtime is gone, or ended the program, the client says so."""
    sys.stdout.flush()
    with contextlib.suppress(OSError):
        backend.send(END, body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
