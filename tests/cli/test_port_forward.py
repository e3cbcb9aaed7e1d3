from __future__ import annotations

import socket
from typing import Any

from tartlet_cli.kube.port_forward import PortForward


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
