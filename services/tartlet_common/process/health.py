"""Serves `/livez`, `/readyz` and `/metrics` as plain HTTP on a port of their own, since probes don't speak TLS.

A thread of its own serves them, so that a stalled event loop is noticed: `/livez` fails when the loop's heartbeat is
old.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tartlet_common.clock import Clock, SystemClock
from tartlet_common.errors.registry import AddressInUse, InvalidConfig

HEARTBEAT_S = 5.0
"""Seconds between heartbeats. Each one wakes an idle process, which costs 0.1 ms of CPU time."""
STALLED_S = 15.0
_PATIENCE_S = 5.0


class Health:
    """The state of a role that probes ask for; `decide` gives the answers."""

    def __init__(self, clock: Clock | None = None) -> None:
        """Begin as alive and not ready."""
        self._clock: Clock = clock or SystemClock()
        self._beat = self._clock.now()
        self._not_ready = "starting"

    def beat(self) -> None:
        """Note that the event loop runs."""
        self._beat = self._clock.now()

    def set_ready(self, reason_if_not: str = "") -> None:
        """Mark the role as ready, or as not ready for this reason ("loading", "draining", ...)."""
        self._not_ready = reason_if_not

    def decide(self, path: str) -> tuple[int, str]:
        """Return the HTTP status and body that answer a probe."""
        stalled_s = self._clock.now() - self._beat
        if stalled_s > STALLED_S:
            return 503, f"event loop stalled for {stalled_s:.0f} s\n"
        if path == "/livez":
            return 200, "ok\n"
        if path == "/readyz":
            return (503, f"{self._not_ready}\n") if self._not_ready else (200, "ok\n")
        return 404, "not found\n"


@contextlib.asynccontextmanager
async def served(health: Health, address: str) -> AsyncIterator[None]:
    """Serve `health` at `host:port` ("": nowhere) and keep its heartbeat while the body of the `async with` runs.

    Raises:
        AddressInUse: another process serves at this address.
        InvalidConfig: the address isn't host:port.
    """
    if not address:
        yield
        return
    server = _bind(health, address)
    ending = threading.Event()
    thread = threading.Thread(target=_serve, args=(server, ending), name="health", daemon=True)
    thread.start()
    beating = asyncio.create_task(_keep_beating(health))
    try:
        yield
    finally:
        beating.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beating
        ending.set()
        server.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        await asyncio.to_thread(thread.join)
        server.server_close()


def _serve(server: ThreadingHTTPServer, ending: threading.Event) -> None:
    """Answer probes until `ending` is set; `serve_forever` would wake twice a second to check for its end."""
    while not ending.is_set():
        server.handle_request()


async def _keep_beating(health: Health) -> None:
    while True:
        health.beat()
        await asyncio.sleep(HEARTBEAT_S)


def _bind(health: Health, address: str) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        timeout = _PATIENCE_S  # a silent connection holds a thread

        def do_GET(self) -> None:
            if self.path == "/metrics":
                from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

                self._answer(200, generate_latest(), CONTENT_TYPE_LATEST)
            else:
                status, text = health.decide(self.path)
                self._answer(status, text.encode(), "text/plain; charset=utf-8")

        def _answer(self, status: int, body: bytes, content_type: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing: probes come every few seconds and would fill the log."""

    host, _, port = address.rpartition(":")
    try:
        return ThreadingHTTPServer((host, int(port)), Handler)
    except ValueError as e:
        raise InvalidConfig(role="health", detail=f"{address!r} is not host:port") from e
    except OSError as e:
        raise AddressInUse(address=address) from e
