"""`POST /v1/responses`: one run of an inferlet, whole or as the API's sequence of events. Nothing is stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec
from starlette.types import Receive, Scope, Send

from tartlet_common.errors.registry import TartletError
from tartlet_gateway.http.exchange import Exchange, StoppedError
from tartlet_gateway.openai import sse
from tartlet_gateway.openai.bodies import fields_of, json_body
from tartlet_gateway.openai.completions import COMMENT_S, HEADERS_S
from tartlet_gateway.openai.errors import JSON, ApiError, answering, from_tartlet, refusal
from tartlet_gateway.openai.requests import ChatRequest, chat_arguments
from tartlet_gateway.responses.replies import Reply
from tartlet_gateway.responses.requests import ResponseRequest, read_response
from tartlet_gateway.runs.backends import Backends
from tartlet_gateway.runs.caller import caller_of
from tartlet_gateway.runs.events import Called, Counted, Delta, Event, Finished, Reasoned, Refused
from tartlet_gateway.runs.launch import closing
from tartlet_gateway.runs.models import target
from tartlet_gateway.runs.sessions import session_of

_STOPPING: Final = "The gateway stops: send the request again."


def encoded(event: dict[str, Any]) -> bytes:
    r"""Return one event, named by its type.

    Example:
        >>> encoded({"type": "response.created"})
        b'event: response.created\ndata: {"type":"response.created"}\n\n'
    """
    return b"event: %s\n" % event["type"].encode() + sse.event(event)


class Responses:
    """The ASGI endpoint."""

    def __init__(self, backends: Backends, stopped: asyncio.Event) -> None:
        self._backends = backends
        self._stopped = stopped

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; every error before the first byte is answered in OpenAI's form."""
        exchange = Exchange(scope, receive, send)
        async with answering(exchange):
            body = await json_body(exchange, self._backends.body_bytes)
            request, chat = read_response(body)
            try:
                await exchange.while_connected(self._serve(exchange, request, chat, body), self._stopped)
            except StoppedError as e:
                error = ApiError(503, _STOPPING, code="stopping")
                if not exchange.started:
                    raise error from e
                if request.stream and not exchange.ended:
                    told = {"type": "error", "sequence_number": 0, **error.body["error"]}
                    await exchange.write(encoded(told), more=False)

    async def _serve(self, exchange: Exchange, request: ResponseRequest, chat: ChatRequest, body: bytes) -> None:
        caller = caller_of(exchange.scope)
        backend = self._backends.of(caller)
        caller.model = request.model
        chosen = target(request.model, await backend.models.list())
        session = session_of(exchange.scope["headers"], fields_of(body), caller.tenant)
        durable = exchange.header(b"x-tartlet-durable") == b"1"
        arguments = chat_arguments(chat)
        if chosen.adapter:
            arguments |= {"adapter": chosen.adapter}
        run = await backend.runs.start(chosen, arguments, durable=durable, session=session)
        caller.program_id = run.program_id
        reply = Reply(request, run.program_id, request.model or chosen.model)
        try:
            async with closing(run) as events:
                if request.stream:
                    await _stream(exchange, reply, events)
                else:
                    async for event in events:
                        _take(reply, event)
                    reply.end()
                    await exchange.reply(200, msgspec.json.encode(reply.response()), [JSON])
        finally:
            caller.tokens = reply.usage.prompt_tokens + reply.usage.completion_tokens


def _take(reply: Reply, event: Event) -> list[dict[str, Any]]:
    """Add an event of the inferlet; return what is told of it."""
    match event:
        case Refused():
            raise refusal(event)
        case Counted():
            reply.usage = event
        case Finished():
            reply.finish(event)
        case Delta() | Reasoned() | Called() if event.choice:
            raise ApiError(500, f"The inferlet answered choice {event.choice} of 1.", code="inferlet_error")
        case Delta(text="") | Reasoned(text=""):
            pass
        case Delta() | Reasoned() | Called():
            return reply.add(event)
    return []


async def _stream(exchange: Exchange, reply: Reply, events: AsyncGenerator[Event, None]) -> None:
    """Write the events. The status waits for the first part of the answer, for up to `HEADERS_S`."""
    opening = b"".join(map(encoded, reply.begin()))

    async def write(told: list[dict[str, Any]], comment: bytes = b"") -> None:
        data = b"".join(map(encoded, told)) + comment
        if not exchange.started:
            await exchange.start(200, sse.HEADERS)
            data = opening + data
        await exchange.write(data)

    coming = asyncio.ensure_future(anext(events, None))
    try:
        while True:
            await asyncio.wait((coming,), timeout=COMMENT_S if exchange.started else HEADERS_S)
            if not coming.done():
                await write([], sse.COMMENT)
                continue
            event = coming.result()
            if event is None:
                break
            if told := _take(reply, event):
                await write(told)
            coming = asyncio.ensure_future(anext(events, None))
        await write(reply.end())
    except (ApiError, TartletError) as e:
        if not exchange.started:
            raise
        await write(reply.fail(e if isinstance(e, ApiError) else from_tartlet(e)))
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
    await exchange.write(b"", more=False)
