"""A program's events over HTTP: server-sent events, read again behind the last one when the connection breaks."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, Final

import httpx

from tartlet._calls import FIRST_PAUSE_S, LAST_PAUSE_S
from tartlet_common.errors.registry import (
    Disconnected,
    FrameTooLarge,
    InternalError,
    InvalidArgument,
    Overloaded,
    PermissionDenied,
    RuntimeLost,
    TartletError,
    Unavailable,
)
from tartlet_common.rpc.error_proto import error_to_proto
from tartlet_protos import programs_pb2

_Event = programs_pb2.ProgramEvent
_KINDS: Final = {"message": _Event.MESSAGE, "stdout": _Event.STDOUT, "stderr": _Event.STDERR}
_UNAUTHORIZED: Final = 401
_STREAM: Final = httpx.Timeout(60.0, connect=5.0, read=45.0)
"""A silent stream has a comment each 15 s."""


def error_of(status: int, body: bytes, *, has_key: bool = True) -> TartletError:
    """Return the error that a reply tells: by its number if it has one, else by the reply's status.

    Args:
        status: of the reply.
        body: the reply's.
        has_key: whether the request had a key.
    """
    try:
        told = json.loads(body)["error"]
        message, typed = str(told["message"]), told.get("tartlet")
        if typed is not None:
            return TartletError.from_wire(int(typed["number"]), json.dumps(typed["fields"]))
        param = told.get("param")
    except (ValueError, KeyError, TypeError, AttributeError):
        return InternalError(detail=f"status {status}, and no error of a gateway: {body[:200]!r}")
    if status == _UNAUTHORIZED and not has_key:
        message = "Give `key`, or set $TARTLET_CLIENT_KEY; `tartlet keys create` makes keys."
    return _by_status(status, message, param, "a client with this key" if has_key else "a client that sends no key")


def _by_status(status: int, message: str, param: str | None, caller: str) -> TartletError:
    match status:
        case 401 | 403:
            return PermissionDenied(caller=caller, method="this gateway", remedy=message)
        case 413:
            return FrameTooLarge(size=0, what=message, limit=0)
        case 429:
            return Overloaded(what=message, limit=0)
        case 408 | 502 | 503 | 504:
            return Unavailable(what="the gateway", detail=message)
        case 400 | 404 | 405 | 415:
            return InvalidArgument(argument=param or "request", detail=message)
    return InternalError(detail=message)


def event_of(told: dict[str, Any]) -> programs_pb2.ProgramEvent:
    """Return the event that a gateway tells, as runtimes tell it.

    Raises:
        TartletError: the event says that the program can't be followed any more.
    """
    kind = told["type"]
    if kind == "error":
        raise error_of(0, json.dumps(told).encode())
    if kind != "ended":
        data = base64.b64decode(told["data"]) if "data" in told else told["text"].encode()
        return _Event(kind=_KINDS[kind], offset=told["offset"], data=data)
    error = None if told["error"] is None else error_of(0, json.dumps(told).encode())
    return _Event(
        kind=_Event.ENDED,
        offset=told["offset"],
        data=(told["result"] or "").encode(),
        success=told["success"],
        error=error_to_proto(error),
        usage=programs_pb2.Usage(**told["usage"]),
    )


def sends_key(http: httpx.AsyncClient) -> bool:
    """Return whether a client's requests have a key."""
    return "authorization" in http.headers


async def _told(reply: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in reply.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


async def _opened(http: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
    try:
        reply = await http.send(request, stream=True)
        if reply.is_error:
            raise error_of(reply.status_code, await reply.aread(), has_key=sends_key(http))
    except httpx.HTTPError as e:
        raise Unavailable(what=f"the gateway at {http.base_url}", detail=str(e) or type(e).__name__) from e
    return reply


class HttpFollowing:
    """Reads one program's events, as `Following` does over gRPC."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        path: str,
        offset: int,
        retry_s: float,
        opened: tuple[httpx.Response, AsyncIterator[dict[str, Any]]] | None = None,
    ) -> None:
        """Read the program at `path` from `offset` on.

        Args:
            http: the client.
            path: of the program.
            offset: of the first event.
            retry_s: for how long a broken stream is taken up again, in seconds.
            opened: a stream with which the program ends, and what comes from it.
        """
        self._http = http
        self._path = path
        self._next = offset
        self._retry_s = retry_s
        self._reply: httpx.Response | None = None
        self._events: AsyncIterator[dict[str, Any]] | None = None
        if opened is not None:
            self._reply, self._events = opened
        self._is_tied = opened is not None
        self._was_heard = self._is_tied
        self._reading: asyncio.Task[Any] | None = None
        self._is_cancelled = False

    def cancel(self) -> None:
        """Stop following; a program with a stream of its own ends."""
        self._is_cancelled = True
        if self._reading is not None:
            self._reading.cancel()
        elif self._reply is not None:
            closing = asyncio.ensure_future(self._closed())
            _CLOSING.add(closing)
            closing.add_done_callback(_CLOSING.discard)

    async def read(self) -> Sequence[programs_pb2.ProgramEvent]:
        """Return the next events.

        Raises:
            Disconnected: the connection of a program that ends with it broke.
            RuntimeLost: the program was followed, and the gateway doesn't answer any more.
            TartletError: the gateway refused.
            asyncio.CancelledError: `cancel` was called.
        """
        if self._is_cancelled:
            raise asyncio.CancelledError
        self._reading = asyncio.current_task()
        try:
            return [await self._event()]
        except asyncio.CancelledError:
            await self._closed()
            raise
        finally:
            self._reading = None

    async def _event(self) -> programs_pb2.ProgramEvent:
        clock = asyncio.get_running_loop().time
        end_s: float | None = None
        pause_s = FIRST_PAUSE_S
        while True:
            why: TartletError = Disconnected()
            try:
                if self._events is None:
                    await self._open()
                assert self._events is not None
                async for told in self._events:
                    event = event_of(told)
                    self._next, self._was_heard = event.offset + 1, True
                    if event.kind == _Event.ENDED:
                        await self._closed()
                    return event
            except httpx.HTTPError as e:
                why = Disconnected(remedy=str(e))
            except Unavailable as e:
                why = e
            await self._closed()
            if self._is_tied:
                raise Disconnected
            end_s = end_s or clock() + self._retry_s
            if clock() + pause_s > end_s:
                raise RuntimeLost if self._was_heard else why
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_PAUSE_S)

    async def _open(self) -> None:
        request = self._http.build_request(
            "GET", f"{self._path}/events", params={"offset": self._next}, timeout=_STREAM
        )
        self._reply = await _opened(self._http, request)
        self._events = _told(self._reply)

    async def _closed(self) -> None:
        reply, self._reply, self._events = self._reply, None, None
        if reply is not None:
            with suppress(httpx.HTTPError):
                await reply.aclose()


_CLOSING: Final[set[asyncio.Future[None]]] = set()
"""Connections that are being closed."""


async def tied_to(http: httpx.AsyncClient, body: dict[str, Any]) -> tuple[str, HttpFollowing]:
    """Launch a program that ends with its stream; return its id and what reads it.

    Raises:
        TartletError: the gateway refused the launch, or didn't answer.
    """
    reply = await _opened(http, http.build_request("POST", "programs", json=body, timeout=_STREAM))
    try:
        events = _told(reply)
        first = await anext(events)
    except BaseException:
        await reply.aclose()
        raise
    return first["id"], HttpFollowing(http, "", 0, 0.0, (reply, events))
