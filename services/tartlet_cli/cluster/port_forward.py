"""Forwards a port of this machine to a pod's port, through the API server.

Each connection is a WebSocket of Kubernetes' protocol `v4.channel.k8s.io`: a message begins with a channel number, 0
for data and 1 for errors, and the first message of a channel repeats the port. RBAC requires `get` on
`pods/portforward`, because a WebSocket begins with a GET, and on newer API servers `create` as well.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Self

from tartlet_cli.cluster.api import CONNECT_S, READ_S, Cluster
from tartlet_cli.cluster.errors import PortForwardFailed, from_status
from tartlet_common.errors.registry import TartletError

_DATA, _ERROR = b"\0", b"\1"
_CHUNK: Final = 64 << 10
_END_S: Final = 2.0  # time for connections to end
_QUIET_S: Final = 0.1  # a closing connection that is silent for this long has delivered its last bytes
_REST_S: Final = 0.2  # wait for the rest of a message that has begun; after that it is continued later
_PROTOCOL = "v4.channel.k8s.io"


class PortForward:
    """Listens on a port of 127.0.0.1; threads copy the data of its connections.

    Args:
        cluster: the cluster whose API server is used.
        namespace: the pod's namespace.
        pod: the pod's name.
        port: the pod's port.
        find: finds another pod and its port for connections after one has failed; None: the pod stays the same.

    Raises:
        PortForwardFailed: by `start`: the connection can't be made.
        Forbidden: by `start`: RBAC forbids it.
    """

    def __init__(
        self, cluster: Cluster, namespace: str, pod: str, port: int, find: Callable[[], tuple[str, int]] | None = None
    ) -> None:
        self._find = find
        self._cluster, self._namespace, self._pod, self._remote = cluster, namespace, pod, port
        self._broken = ""
        self._closing = threading.Event()
        self._woken, self._waker = socket.socketpair()
        self._listener: socket.socket | None = None
        self._threads: list[threading.Thread] = []
        self._first: Any = None

    def start(self) -> Self:
        """Connect and listen."""
        self._first = self._open()  # opened now, so that `start` reports a refusal
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._spawn(self._accept)
        return self

    @property
    def local_port(self) -> int:
        """The port of this machine."""
        assert self._listener is not None
        return int(self._listener.getsockname()[1])

    @property
    def error(self) -> PortForwardFailed | None:
        """The error that broke the forward, or None."""
        return self._failed(self._broken) if self._broken else None

    def close(self) -> None:
        """Stop listening, deliver the data that was written, and end every connection."""
        self._closing.set()
        self._waker.close()
        if self._listener is not None:
            with contextlib.suppress(OSError):  # wakes the thread that accepts
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        end_s = time.monotonic() + _END_S
        while (left := [t for t in self._threads if t.is_alive()]) and time.monotonic() < end_s:
            left[0].join(end_s - time.monotonic())  # the accepting thread may start another one meanwhile
        self._woken.close()
        if self._first is not None:
            self._first.shutdown()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _failed(self, detail: str) -> PortForwardFailed:
        return PortForwardFailed(pod=self._pod, namespace=self._namespace, detail=detail)

    def _spawn(self, work: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=work, args=args, name="port-forward", daemon=True)
        self._threads = [*(earlier for earlier in self._threads if earlier.is_alive()), thread]
        thread.start()

    def _open_next(self) -> Any:
        """Open a WebSocket, to another pod if the last connection failed: the pod may be gone."""
        if self._broken and self._find is not None:
            self._pod, self._remote = self._find()
        remote = self._open()
        self._broken = ""
        return remote

    def _open(self) -> Any:
        """Open a WebSocket to the pod's port."""
        from kubernetes.stream.ws_client import create_websocket
        from websocket import WebSocketBadStatusException, WebSocketException, setdefaulttimeout

        host = self._cluster.server
        scheme, _, rest = host.partition("://")
        path = f"/api/v1/namespaces/{self._namespace}/pods/{self._pod}/portforward?ports={self._remote}"
        url = f"{'ws' if scheme == 'http' else 'wss'}://{rest}{path}"
        headers = {"sec-websocket-protocol": _PROTOCOL, **self._cluster.login()}
        setdefaulttimeout(CONNECT_S)
        try:
            made = create_websocket(self._cluster.configuration, url, headers)
        except WebSocketBadStatusException as e:
            error = from_status(e.status_code, e.resp_body or b"", f"forward a port of pod {self._pod}")
            raise self._failed(str(error)) if error.number >= 400 else error from e
        except (OSError, WebSocketException) as e:
            raise self._failed(str(e) or type(e).__name__) from e
        return made

    def _accept(self) -> None:
        assert self._listener is not None
        while not self._closing.is_set():
            try:
                local, _ = self._listener.accept()
            except OSError:
                return  # closed
            self._spawn(self._serve, local)

    def _serve(self, local: socket.socket) -> None:
        """Serve one connection until its end."""
        with local:
            local.settimeout(READ_S)
            local.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            remote = None
            try:
                remote, self._first = self._first, None
                remote = remote or self._open_next()
                why = self._carry(local, remote)
            except TartletError as e:
                why = str(e)
            except Exception as e:  # noqa: BLE001 - any error of the WebSocket or of TLS ends the connection, and is reported
                why = str(e) or type(e).__name__
            if why and not self._closing.is_set():
                self._broken = why  # before the client sees its end
            if remote is not None:
                with contextlib.suppress(OSError):
                    remote.shutdown()

    def _carry(self, local: socket.socket, remote: Any) -> str:
        """Copy data both ways until an end closes; return "" if that was the client, else the other end's text."""
        greeted: set[int] = set()
        while True:
            if self._closing.is_set():
                ready = _readable(_QUIET_S, local, remote.sock)
                if not ready:
                    return ""  # the client should have closed it by now
            else:
                ready = _readable(None, local, remote.sock, self._woken)
            if remote.sock.fileno() in ready:
                told = self._receive(local, remote, greeted)
                if told is not None:
                    return told
            if local.fileno() in ready:
                try:
                    data = local.recv(_CHUNK)
                except ConnectionError:
                    data = b""
                if not data:
                    return ""
                remote.settimeout(READ_S)
                remote.send_binary(_DATA + data)

    def _receive(self, local: socket.socket, remote: Any, greeted: set[int]) -> str | None:
        """Pass received data on; return a text if the other end has closed."""
        from websocket import ABNF, WebSocketTimeoutException

        while True:
            remote.settimeout(_REST_S)
            try:
                opcode, frame = remote.recv_data_frame(True)  # control frames too; the library answers pings
            except WebSocketTimeoutException:
                return None  # only data of TLS itself, or part of a message
            if opcode == ABNF.OPCODE_CLOSE:
                return "the pod closed the connection"
            if opcode == ABNF.OPCODE_BINARY and frame.data:
                channel, data = frame.data[0], frame.data[1:]
                if channel not in greeted:
                    greeted.add(channel)
                elif channel == _ERROR[0]:
                    return data.decode(errors="replace").strip() or "the kubelet reported an error"
                else:
                    try:
                        local.sendall(data)
                    except ConnectionError:
                        return ""
            # TLS may have decrypted the next frame already, which poll can't see
            if not (isinstance(remote.sock, ssl.SSLSocket) and remote.sock.pending()):
                return None


def _readable(timeout_s: float | None, *sockets: socket.socket) -> set[int]:
    """Wait until one of the sockets can be read; return the numbers of those that can."""
    poll = select.poll()  # `select` fails for descriptors above 1023
    for each in sockets:
        poll.register(each, select.POLLIN)
    return {number for number, _ in poll.poll(None if timeout_s is None else timeout_s * 1e3)}
