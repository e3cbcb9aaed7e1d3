"""The part of a kubelet that forwards ports: what an API server talks to when somebody asks for `pods/portforward`.

Real API servers proxy the WebSocket to whatever address a Node has, so with this and a Node object the whole way from a
client to a process of the test's is the real one, RBAC included, without containers.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import trustme

_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_BINARY, _CLOSE, _PING = 2, 8, 9


@dataclass
class Kubelet:
    """Forwards every port of a pod to the port of 127.0.0.1 in `targets`; `refuse` is what it says instead."""

    targets: dict[str, int]
    """Ports of this machine by the names of pods."""
    refuse: str = ""
    paths: list[str] = field(default_factory=list)
    """What was asked for."""

    def start(self, directory: Path) -> None:
        authority = trustme.CA()
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """End every connection at once."""
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with contextlib.suppress(OSError), self._context.wrap_socket(plain, server_side=True) as connection:
            self._open.append(connection)
            head = b""
            while b"\r\n\r\n" not in head:
                got = connection.recv(4096)
                if not got:
                    return
                head += got
            request, *lines = head.decode().split("\r\n")
            headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines)}
            self.paths.append(request.split(" ")[1])
            accept = base64.b64encode(hashlib.sha1(headers["sec-websocket-key"].encode() + _MAGIC).digest()).decode()
            connection.sendall(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                + f"Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n".encode()
            )
            path, _, asked = self.paths[-1].partition("?port=")
            port = struct.pack("<H", int(asked))
            for channel in (b"\0", b"\1"):
                connection.sendall(_frame(channel + port))
            if self.refuse:
                connection.sendall(_frame(b"\1" + self.refuse.encode()))
                return
            with socket.create_connection(("127.0.0.1", self.targets[path.rpartition("/")[2]])) as process:
                _carry(connection, process)
            connection.sendall(_frame(b"", _CLOSE))


def _carry(connection: ssl.SSLSocket, process: socket.socket) -> None:
    read = _reader(connection)
    while True:
        ready = [connection] if connection.pending() else select.select([connection, process], [], [])[0]
        if connection in ready:
            opcode, data = _receive(read)
            if opcode == _CLOSE:
                return
            if opcode == _BINARY and data[:1] == b"\0":
                process.sendall(data[1:])
        if process in ready:
            data = process.recv(1 << 16)
            if not data:
                return
            connection.sendall(_frame(b"\0" + data))


def _reader(connection: ssl.SSLSocket) -> Callable[[int], bytes]:
    def read(n: int) -> bytes:
        out = b""
        while len(out) < n:
            got = connection.recv(n - len(out))
            if not got:
                raise OSError("it ended")
            out += got
        return out

    return read


def _receive(read: Callable[[int], bytes]) -> tuple[int, bytes]:
    first, second = read(2)
    size = second & 127
    if size == 126:
        (size,) = struct.unpack(">H", read(2))
    elif size == 127:
        (size,) = struct.unpack(">Q", read(8))
    mask = read(4) if second & 128 else b"\0\0\0\0"
    data = read(size)
    key = (mask * (size // 4 + 1))[:size]
    return first & 15, (int.from_bytes(data, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")


def _frame(data: bytes, opcode: int = _BINARY) -> bytes:
    size = len(data)
    if size < 126:
        return bytes((128 | opcode, size)) + data
    if size < 1 << 16:
        return struct.pack(">BBH", 128 | opcode, 126, size) + data
    return struct.pack(">BBQ", 128 | opcode, 127, size) + data
