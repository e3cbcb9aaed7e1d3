"""The port-forward's own connections; a pod's end is made up."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

from tartlet_cli.cluster.port_forward import PortForward


class Remote:
    """A connection to a pod, as far as it is closed."""

    def shutdown(self) -> None:
        """Nothing to close."""


class Brief(PortForward):
    """Every connection ends at once."""

    def _open(self) -> Any:
        return Remote()

    def _carry(self, local: socket.socket, remote: Any) -> str:
        return ""


def test_threads_of_connections_that_have_ended_are_not_kept() -> None:
    with Brief(None, "team-a", "prod-runtime-0", 8400) as forward:  # type: ignore[arg-type]  # it asks no cluster
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", forward.local_port)) as client:
                assert not client.recv(1)
        assert len(forward._threads) <= 4
    assert forward.error is None


class Silent(PortForward):
    """The pod says nothing, and keeps what it is told."""

    def _open(self) -> Any:
        return Listener()


class Listener(Remote):
    """A connection to a pod that only listens."""

    def __init__(self) -> None:
        self.sock, self._end = socket.socketpair()
        self.heard = b""
        self.has_heard = threading.Event()

    def shutdown(self) -> None:
        self.sock.close()
        self._end.close()

    def settimeout(self, _: float) -> None:
        """It never waits."""

    def send_binary(self, data: bytes) -> None:
        self.heard += data[1:]
        self.has_heard.set()


def test_connections_that_a_client_keeps_open_hold_nobody_up_and_lose_nothing() -> None:
    forward = Silent(None, "team-a", "prod-runtime-0", 8400)  # type: ignore[arg-type]  # it asks no cluster
    forward.start()
    pod = forward._first
    with socket.create_connection(("127.0.0.1", forward.local_port)) as client:
        client.sendall(b"first words, ")
        assert pod.has_heard.wait(5)
        client.sendall(b"last words")
        start = time.monotonic()
        forward.close()
        assert time.monotonic() - start < 1.0
        assert pod.heard == b"first words, last words"
    assert not any(thread.is_alive() for thread in forward._threads)
    assert forward.error is None


class Rolled(PortForward):
    """The first pod closes its connection, and there is no second one to it."""

    def _open(self) -> Any:
        self.asked = [*getattr(self, "asked", []), self._pod]
        return Remote()

    def _carry(self, local: socket.socket, remote: Any) -> str:
        return "the pod closed the connection" if self._pod == "runtime-0" else ""


def test_the_next_connection_goes_to_another_pod_if_the_last_one_failed() -> None:
    forward = Rolled(None, "team-a", "runtime-0", 8400, lambda: ("runtime-1", 8400))  # type: ignore[arg-type]  # no cluster
    with forward:
        with socket.create_connection(("127.0.0.1", forward.local_port)) as client:
            assert not client.recv(1)
        assert "closed" in str(forward.error)
        with socket.create_connection(("127.0.0.1", forward.local_port)) as client:
            assert not client.recv(1)
        assert forward.error is None
        assert forward.asked == ["runtime-0", "runtime-1"]
