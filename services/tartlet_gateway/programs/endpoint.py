"""What the routes of programs have in common: a bounded body, a caller's client, typed errors, clients that leave."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import parse_qs

import msgspec
from starlette.types import Receive, Scope, Send

import tartlet
from tartlet_gateway.http.exchange import Exchange
from tartlet_gateway.openai.bodies import bounded_body
from tartlet_gateway.openai.errors import JSON, ApiError, left_open, until_stopped
from tartlet_gateway.programs.errors import answering
from tartlet_gateway.runs.backends import Backends
from tartlet_gateway.runs.caller import Caller, caller_of
from tartlet_gateway.runs.lasting import Lasting

_DIGITS = 20


@dataclass(frozen=True, slots=True)
class Call:
    """One request.

    Attributes:
        exchange: The request and its reply.
        client: A client that acts for the caller's tenant alone.
        caller: Whom the request is served for.
        body: The whole body.
        lasting: The programs that were launched here.
    """

    exchange: Exchange
    client: tartlet.AsyncClient
    caller: Caller
    body: bytes
    lasting: Lasting

    @property
    def content_type(self) -> bytes | None:
        """The body's content type."""
        return self.exchange.header(b"content-type")

    @property
    def name(self) -> str:
        """The part of the path that names a program or an inferlet."""
        return str(self.exchange.scope["path_params"]["name"])

    def query(self, name: str, default: str = "") -> str:
        """Return the last value of a query parameter."""
        given = parse_qs(self.exchange.scope["query_string"].decode("latin-1"), keep_blank_values=True)
        return str(given.get(name, [default])[-1])

    def number(self, name: str, default: float, most: float) -> float:
        """Return a query parameter that is a number from 0 to `most`.

        Raises:
            ApiError: 400, it is none.
        """
        text = self.query(name)
        try:
            value = float(text) if text else default
        except ValueError:
            value = -1.0
        if not 0 <= value <= most:
            raise ApiError(400, f"{name}: a number from 0 to {most:g}.", param=name)
        return value

    def whole(self, name: str, default: int, least: int, most: int) -> int:
        """Return a query parameter that is a whole number from `least` to `most`.

        Raises:
            ApiError: 400, it is none.
        """
        text = self.query(name)
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS) or not least <= int(text) <= most:
            raise ApiError(400, f"{name}: a whole number from {least} to {most}.", param=name)
        return int(text)


Handler = Callable[[Call], Awaitable[tuple[int, dict[str, Any]] | None]]
"""Returns status and JSON object of a reply; None: the reply is written."""


class Endpoint:
    """The ASGI endpoint of one operation."""

    def __init__(self, handler: Handler, backends: Backends, stopped: asyncio.Event) -> None:
        self._handler = handler
        self._backends = backends
        self._stopped = stopped

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; every error is answered with its number and fields."""
        exchange = Exchange(scope, receive, send)
        caller = caller_of(scope)
        async with answering(exchange):
            body = await bounded_body(exchange, self._backends.body_bytes)
            lasting = self._backends.lasting
            caller.ended = partial(lasting.ended, caller.tenant)
            call = Call(exchange, self._backends.of(caller).client, caller, body, lasting)
            answer = await until_stopped(exchange, self._answer(call), self._stopped, partial(left_open, exchange))
            if answer is not None:
                await exchange.reply(answer[0], msgspec.json.encode(answer[1]), [JSON])

    async def _answer(self, call: Call) -> tuple[int, dict[str, Any]] | None:
        return await self._handler(call)
