"""The ASGI endpoint of an API whose replies are made of blocks: a run of an inferlet, whole or as named events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

import tartlet
from tartlet_common.errors.registry import TartletError
from tartlet_gateway.http.exchange import Exchange
from tartlet_gateway.openai import sse
from tartlet_gateway.openai.bodies import fields_of, json_body
from tartlet_gateway.openai.completions import COMMENT_S, HEADERS_S
from tartlet_gateway.openai.errors import JSON, ApiError, answer, from_tartlet, refusal, until_stopped
from tartlet_gateway.openai.requests import ChatRequest, chat_arguments
from tartlet_gateway.runs.backends import Backends
from tartlet_gateway.runs.caller import caller_of
from tartlet_gateway.runs.events import Called, Counted, Delta, Event, Finished, Reasoned, Refused, Said, counting
from tartlet_gateway.runs.launch import closing
from tartlet_gateway.runs.models import target
from tartlet_gateway.runs.pacing import paced
from tartlet_gateway.runs.sessions import BadSessionError, Session, session_of


class Request(Protocol):
    """A request as an API has it."""

    @property
    def model(self) -> str | None:
        """The model, or MODEL/INFERLET; "" or None for the default."""

    @property
    def stream(self) -> bool | None:
        """Whether the reply is a stream of events."""


R = TypeVar("R", bound=Request)


class Reply(Protocol):
    """A reply in the making. Each method returns the events that tell of its part."""

    usage: Counted

    def begin(self) -> list[dict[str, Any]]:
        """Open the reply."""

    def add(self, event: Said) -> list[dict[str, Any]]:
        """Take a part of the answer."""

    def finish(self, event: Finished) -> None:
        """Note why the answer ends where it does."""

    def end(self) -> list[dict[str, Any]]:
        """Close the reply."""

    def fail(self, error: ApiError) -> list[dict[str, Any]]:
        """Close a reply that failed after its beginning."""

    def whole(self) -> dict[str, Any]:
        """Return the reply that has ended, as one object."""


class Form(Protocol[R]):
    """The form of an API."""

    def read(self, body: bytes) -> tuple[R, ChatRequest]:
        """Read a request, and return the chat that answers it too.

        Raises:
            ApiError: 400, a field is wrong or isn't offered.
        """

    def reply(self, request: R, run_id: str, model: str) -> Reply:
        """Begin a reply."""

    def error(self, error: ApiError) -> ApiError:
        """Return an error in the form of the API."""

    def broken(self, error: ApiError) -> dict[str, Any]:
        """Return the event that ends a stream which can't go on."""


def encoded(event: dict[str, Any]) -> bytes:
    r"""Return one event, named by its type.

    Example:
        >>> encoded({"type": "response.created"})
        b'event: response.created\ndata: {"type":"response.created"}\n\n'
    """
    return b"event: %s\n" % event["type"].encode() + sse.event(event)


class Answers(Generic[R]):
    """The endpoint."""

    def __init__(self, form: Form[R], backends: Backends, stopped: asyncio.Event) -> None:
        self._form = form
        self._backends = backends
        self._stopped = stopped

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; every error before the first byte is answered with its status, in the API's form."""
        exchange = Exchange(scope, receive, send)
        try:
            body = await json_body(exchange, self._backends.body_bytes)
            request, chat = self._form.read(body)
            await self._answered(exchange, request, chat, body)
        except ApiError as e:
            await answer(exchange, self._form.error(e))
        except BadSessionError as e:
            await answer(exchange, self._form.error(ApiError(400, str(e), param=e.param)))
        except TartletError as e:
            await answer(exchange, self._form.error(from_tartlet(e)))

    async def _answered(self, exchange: Exchange, request: R, chat: ChatRequest, body: bytes) -> None:
        end = partial(self.stop, exchange, request) if request.stream else None
        await until_stopped(exchange, self._serve(exchange, request, chat, body), self._stopped, end)

    async def stop(self, exchange: Exchange, request: R, error: ApiError) -> None:
        """End a stream because the gateway stops."""
        del request
        exchange.fail(error.status)
        await exchange.write(encoded(self._form.broken(error)), more=False)

    async def _serve(self, exchange: Exchange, request: R, chat: ChatRequest, body: bytes) -> None:
        session = session_of(exchange.scope["headers"], fields_of(body), caller_of(exchange.scope).tenant)
        await self.answer(exchange, request, chat, session)

    async def launch(
        self, exchange: Exchange, request: R, chat: ChatRequest, session: Session, *, tied: bool = True, durable: bool
    ) -> tuple[tartlet.Run, str]:
        """Launch the run that answers; return it and the model's name."""
        caller = caller_of(exchange.scope)
        backend = self._backends.of(caller)
        caller.model = request.model or ""
        chosen = target(caller.model, await backend.models.list())
        arguments = chat_arguments(chat) | ({"adapter": chosen.adapter} if chosen.adapter else {})
        run = await backend.runs.start(chosen, arguments, durable=durable, session=session, tied=tied)
        caller.program_id = run.program_id
        return run, request.model or chosen.model

    async def answer(self, exchange: Exchange, request: R, chat: ChatRequest, session: Session) -> None:
        """Launch the run that answers, and write its reply; the run ends with the request."""
        caller = caller_of(exchange.scope)
        durable = exchange.header(b"x-tartlet-durable") == b"1"
        run, model = await self.launch(exchange, request, chat, session, durable=durable)
        reply = self._form.reply(request, run.program_id, model)
        try:
            async with closing(run) as events:
                if request.stream:
                    await _stream(exchange, reply, events)
                else:
                    async for event in events:
                        take(reply, event)
                    reply.end()
                    await exchange.reply(200, msgspec.json.encode(reply.whole()), [JSON])
        finally:
            caller.saw(run, reply.usage)


def take(reply: Reply, event: Event) -> list[dict[str, Any]]:
    """Add an event of the inferlet; return what is told of it."""
    reply.usage = counting(reply.usage, event)
    match event:
        case Refused():
            raise refusal(event)
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
    """Write the events. The status waits for the first part of the answer, for up to `HEADERS_S`.

    The reply begins as late as it can: by then the inferlet has told how many tokens the prompt has.
    """

    def begun() -> list[dict[str, Any]]:
        return [] if exchange.started else reply.begin()

    async def write(told: list[dict[str, Any]], comment: bytes = b"") -> None:
        if not exchange.started:
            await exchange.start(200, sse.HEADERS)
        await exchange.write(b"".join(map(encoded, told)) + comment)

    try:
        async with aclosing(paced(events, lambda: COMMENT_S if exchange.started else HEADERS_S)) as coming:
            async for event in coming:
                if event is None:
                    await write(begun(), sse.COMMENT)
                elif isinstance(event, Counted | Finished | Refused) or not getattr(event, "text", " "):
                    take(reply, event)
                else:
                    await write([*begun(), *take(reply, event)])
        await write([*begun(), *reply.end()])
    except (ApiError, TartletError) as e:
        if not exchange.started:
            raise
        error = e if isinstance(e, ApiError) else from_tartlet(e)
        exchange.fail(error.status)
        await write(reply.fail(error))
    await exchange.write(b"", more=False)
