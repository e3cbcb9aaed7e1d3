"""One request and its reply over ASGI: bounded bodies, replies with a write deadline, clients that go away."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeAlias, TypeVar

from starlette.types import Message, Receive, Scope, Send

T = TypeVar("T")
Headers: TypeAlias = list[tuple[bytes, bytes]]

WRITE_S: Final = 30.0
"""How long a client may take to read what is written to it."""
GOING_AWAY: Final = 1012
"""The close code of a WebSocket whose gateway stops: connect again, and attach behind the last event."""
BODY_S: Final = 30.0
"""How long a client may take to send its body."""


GONE: Final = 499
"""The status of a request whose client left before the reply ended."""
_FAILED: Final = "tartlet.failed"


class Outcome:
    """The status by which a request is counted.

    A reply counts with its status once its last part is sent, and before as one whose client left. A stream that ends
    by an error event counts with the error's status.
    """

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._sent = GONE
        self._whole = False

    def see(self, message: Message) -> None:
        """Note a message of the reply."""
        if message["type"] == "http.response.start":
            self._sent = message["status"]
        elif message["type"] == "http.response.body":
            self._whole = not message.get("more_body", False)

    @property
    def status(self) -> int:
        """The status as far as it is known."""
        return int(self._scope.get(_FAILED, self._sent)) if self._whole else GONE


class ClientGoneError(Exception):
    """The client closed its connection, or stopped reading."""


class StoppedError(Exception):
    """The gateway stops, and the reply took longer than the time that requests have left then."""


class BodyTooLargeError(Exception):
    """The request's body is longer than the bound.

    Attributes:
        limit: The bound, in bytes.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit


class BodyLateError(Exception):
    """The request's body didn't arrive within `BODY_S`."""


class Exchange:
    """One HTTP request and its reply.

    Attributes:
        scope: ASGI's description of the request.
        started: Whether the reply's status has been sent.
        ended: Whether the last part of the reply has been sent.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.started = False
        self.ended = False
        self._receive = receive
        self._send = send

    def header(self, name: bytes) -> bytes | None:
        """Return the first request header of this lower-case name."""
        headers: Headers = self.scope["headers"]
        return next((value for key, value in headers if key == name), None)

    async def body(self, limit: int) -> bytes:
        """Read the whole request body.

        Raises:
            BodyTooLargeError: it has more than `limit` bytes; the rest isn't read.
            BodyLateError: it doesn't arrive in time.
            ClientGoneError: the client closed the connection.
        """
        declared = self.header(b"content-length")
        if declared is not None and declared.isdigit() and int(declared) > limit:
            raise BodyTooLargeError(limit)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_S):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGoneError
                    part = message.get("body", b"")
                    size += len(part)
                    if size > limit:
                        raise BodyTooLargeError(limit)
                    parts.append(part)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError as e:
            raise BodyLateError from e

    async def reply(self, status: int, body: bytes, headers: Headers) -> None:
        """Send a whole reply."""
        await self.start(status, [*headers, (b"content-length", str(len(body)).encode())])
        await self.write(body, more=False)

    async def start(self, status: int, headers: Headers) -> None:
        """Send status and headers."""
        self.started = True
        await self._out({"type": "http.response.start", "status": status, "headers": headers})

    def fail(self, status: int) -> None:
        """Note that the reply, which has begun, ends by an error of this status."""
        self.scope[_FAILED] = status

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send a part of the reply's body; `more` False ends it."""
        self.ended = not more
        await self._out({"type": "http.response.body", "body": data, "more_body": more})

    async def while_connected(self, work: Coroutine[Any, Any, T], stopped: asyncio.Event) -> T:
        """Run `work`, and cancel it when the client goes away. Call this after the body has been read.

        Args:
            work: what reads no more of the request.
            stopped: is set when the gateway stops and gives requests no more time.

        Raises:
            ClientGoneError: the client went away before `work` was done.
            StoppedError: `stopped` was set before `work` was done; `work` has ended.
        """
        working = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(self._gone())
        stopping = asyncio.ensure_future(stopped.wait())
        try:
            await asyncio.wait((working, leaving, stopping), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise ClientGoneError if leaving.done() else StoppedError
        finally:
            stopping.cancel()
            leaving.cancel()
            working.cancel()
            await asyncio.gather(working, leaving, stopping, return_exceptions=True)

    async def _gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _out(self, message: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(WRITE_S):
                await self._send(message)
        except (TimeoutError, OSError) as e:
            raise ClientGoneError from e
