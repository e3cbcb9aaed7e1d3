"""The HTTP server: uvicorn inside a role's process, which handles signals itself."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import uvicorn

from tartlet_common.errors.registry import AddressInUse, InvalidConfig
from tartlet_gateway.http.certificate import Certificate
from tartlet_gateway.http.frames import FrameProtocol
from tartlet_gateway.http.protocol import bounded

STOP_S: Final = 4
"""How long requests may go on once the gateway is asked to stop."""
FAREWELL_S: Final = 1
"""How long the application may take to end the requests that are left after `STOP_S`."""
LOOK_S: Final = 2.0
"""How often the certificate's files are looked at."""
KEEP_ALIVE_S: Final = 75
"""How long an idle connection stays open."""


class Bounds(NamedTuple):
    """What clients may take: bytes of a WebSocket's frame, and connections that are open at once."""

    body_bytes: int
    connections: int


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the role's process, which cancels `serve`."""
        yield


def bind(address: str) -> socket.socket:
    """Bind and return a TCP socket for `address`, `host:port`.

    Raises:
        InvalidConfig: the address is no `host:port`, or the host is unknown.
        AddressInUse: another process serves there.
    """
    host, port = parts(address)
    try:
        return socket.create_server((host, port), family=_family(host), backlog=1024)
    except socket.gaierror as e:
        raise InvalidConfig(role="gateway", detail=f"address: {address}: {e.strerror}") from e
    except OSError as e:
        raise AddressInUse(address=address) from e


def parts(address: str) -> tuple[str, int]:
    """Return host and port of `host:port`; an IPv6 host stands in brackets.

    Raises:
        InvalidConfig: the address has another form.

    Example:
        >>> parts("[::1]:8200")
        ('::1', 8200)
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 0xFFFF:
        remedy = "Give host:port, such as 127.0.0.1:8200."
        raise InvalidConfig(role="gateway", detail=f"address: {address!r} is no host:port", remedy=remedy)
    return host.strip("[]"), int(port)


async def serve(
    app: Any,
    listener: socket.socket,
    ready: Callable[[], None],
    end: Callable[[], None],
    bounds: Bounds,
    certificate: Certificate | None = None,
) -> None:
    """Serve an ASGI application until cancelled.

    Args:
        app: the application.
        listener: the socket that it serves at.
        ready: is called once connections are accepted.
        end: is called when requests have gone on for `STOP_S` after the cancellation. Ends what is left.
        bounds: the longest frame of a WebSocket, and how many connections may be open.
        certificate: the server's certificate for HTTPS; None serves plain HTTP.
    """
    config = uvicorn.Config(
        app,
        http=bounded(bounds.connections),
        ws=FrameProtocol,
        ws_max_size=bounds.body_bytes,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S + FAREWELL_S,
    )
    config.load()
    if certificate is not None:
        config.ssl = certificate.context
    server = _Server(config)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.005)
        ready()
        while not serving.done():
            await asyncio.wait((serving,), timeout=LOOK_S)
            if certificate is not None:
                certificate.look()
        serving.result()
    finally:
        server.should_exit = True
        late = asyncio.get_running_loop().call_later(STOP_S, end)
        try:
            await serving
        finally:
            late.cancel()


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
