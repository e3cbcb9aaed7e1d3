"""Stored responses: fetched, followed from an event on, cancelled and deleted, with the items of their input."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec
from starlette.types import Receive, Scope, Send

from tartlet_common.errors.registry import TartletError
from tartlet_gateway.http.exchange import Exchange
from tartlet_gateway.openai.bodies import bounded_body
from tartlet_gateway.openai.errors import JSON, ApiError, answering, left_open, until_stopped
from tartlet_gateway.responses.endpoint import SETTLE_S, stream
from tartlet_gateway.responses.recordings import Recording, Recordings
from tartlet_gateway.responses.records import Record, input_items, response_of
from tartlet_gateway.responses.shelf import Shelf
from tartlet_gateway.responses.tapes import Tape
from tartlet_gateway.runs.backends import Backends
from tartlet_gateway.runs.caller import caller_of

MOST_ITEMS: Final = 100
"""Items of one page."""
_MOST_NUMBER: Final = 1 << 53


@dataclass(frozen=True, slots=True)
class Call:
    """One request for a stored response."""

    exchange: Exchange
    shelf: Shelf
    recordings: Recordings
    given: str

    def query(self, name: str) -> str:
        """Return the last value of a query parameter, "" if it isn't given."""
        given = parse_qs(self.exchange.scope["query_string"].decode("latin-1"), keep_blank_values=True)
        return str(given.get(name, [""])[-1])

    def number(self, name: str, default: int, most: int) -> int:
        """Return a query parameter that is a whole number from 0 to `most`.

        Raises:
            ApiError: 400, it is none.
        """
        text = self.query(name)
        if not text:
            return default
        if not (text.isascii() and text.isdigit()) or len(text) > len(str(most)) or int(text) > most:
            raise ApiError(400, f"{name}: a whole number from 0 to {most}.", param=name)
        return int(text)

    async def found(self) -> tuple[Record, Recording | None]:
        """Return the response, and its recording if its run hasn't ended as far as the store says.

        Raises:
            ApiError: 404, there is none.
        """
        record = await self.shelf.get(self.given)
        if record.state != "running":
            return record, None
        recording = await self.recordings.of(record, self.shelf)
        return recording.record, recording


Handler = Callable[[Call], Awaitable[dict[str, Any] | None]]
"""Returns the JSON object of a reply; None: the reply is written."""


async def get(call: Call) -> dict[str, Any] | None:
    """Show a response; with `stream=true` tell its events behind the number `starting_after`."""
    after = call.number("starting_after", -1, _MOST_NUMBER)
    record, recording = await call.found()
    if call.query("stream") in ("1", "true"):
        if recording is None:
            await stream(call.exchange, Tape(record), after=after)
            return None
        if not record.request.background:
            await call.shelf.claim(call.given, call.recordings.gateway)
        with recording.read():
            await stream(call.exchange, recording, after=after)
        return None
    if recording is not None:  # its run may have ended unseen: the gateway that followed it is gone
        await recording.settle(SETTLE_S)
        if record.state != "running":  # it is being stored
            await recording.wait_end(SETTLE_S)
    return response_of(record)


async def delete(call: Call) -> dict[str, Any]:
    """Delete a response; one that runs is ended."""
    _, recording = await call.found()
    if recording is not None:
        recording.stored = False
        try:
            await recording.cancel()
        except (ApiError, TartletError):  # the response stays, so that the client can delete it again
            recording.stored = True
            raise
    await call.shelf.delete(call.given)
    return {"id": call.given, "object": "response", "deleted": True}


async def cancel(call: Call) -> dict[str, Any]:
    """End a background response. One that has ended is shown as it is."""
    record, recording = await call.found()
    if not record.request.background:
        told = "Only responses with `background: true` can be cancelled; close the connection of any other."
        raise ApiError(400, told, param="response_id", code="response_not_background")
    if recording is not None:
        await recording.cancel()
    return response_of(record)


async def items(call: Call) -> dict[str, Any]:
    """List the items of a response's input, those of the responses before it among them."""
    limit = call.number("limit", 20, MOST_ITEMS) or 1
    order = call.query("order") or "desc"
    if order not in ("asc", "desc"):
        raise ApiError(400, "order: asc or desc.", param="order")
    record = await call.shelf.get(call.given)
    listed = input_items(await call.shelf.conversation(record))
    if order == "desc":
        listed.reverse()
    if after := call.query("after"):
        at = next((at for at, item in enumerate(listed) if item["id"] == after), None)
        if at is None:
            raise ApiError(400, "after: no item of this response has this id.", param="after")
        listed = listed[at + 1 :]
    page = listed[:limit]
    ids = [str(item["id"]) for item in page]
    ends = {"first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}
    return {"object": "list", "data": page, "has_more": len(listed) > limit, **ends}


class Stored:
    """The ASGI endpoint of one operation on stored responses."""

    def __init__(self, handler: Handler, backends: Backends, recordings: Recordings, stopped: asyncio.Event) -> None:
        self._handler = handler
        self._backends = backends
        self._recordings = recordings
        self._stopped = stopped

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; every error is answered in OpenAI's form."""
        exchange = Exchange(scope, receive, send)
        async with answering(exchange):
            await bounded_body(exchange, self._backends.body_bytes)
            answer = await until_stopped(exchange, self._answer(exchange), self._stopped, partial(left_open, exchange))
            if answer is not None:
                await exchange.reply(200, msgspec.json.encode(answer), [JSON])

    async def _answer(self, exchange: Exchange) -> dict[str, Any] | None:
        backend = self._backends.of(caller_of(exchange.scope))
        shelf = Shelf(backend.client, self._backends.kept.stored_s, backend.hold)
        given = str(exchange.scope["path_params"]["name"])
        return await self._handler(Call(exchange, shelf, self._recordings, given))
