"""Chat and text completions: one run of an inferlet each, whole or streamed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final

import msgspec
from starlette.types import Receive, Scope, Send

from tartlet_common.errors.registry import TartletError
from tartlet_gateway.http.exchange import Exchange
from tartlet_gateway.openai import sse
from tartlet_gateway.openai.bodies import fields_of, json_body
from tartlet_gateway.openai.errors import JSON, ApiError, answering, from_tartlet, refusal, until_stopped
from tartlet_gateway.openai.further import check_further
from tartlet_gateway.openai.replies import Form, Reply
from tartlet_gateway.openai.requests import (
    ChatRequest,
    CompletionRequest,
    chat_arguments,
    choices_of,
    completion_arguments,
    further_fields,
    read_chat,
    read_completion,
)
from tartlet_gateway.runs.backends import Backends
from tartlet_gateway.runs.caller import caller_of
from tartlet_gateway.runs.events import Called, Delta, Event, Finished, Reasoned, Refused, counting
from tartlet_gateway.runs.launch import closing
from tartlet_gateway.runs.models import target
from tartlet_gateway.runs.pacing import paced
from tartlet_gateway.runs.sessions import session_of

HEADERS_S: Final = 10.0
"""A stream's status waits this long for the first event, so that an early error keeps its own status."""
COMMENT_S: Final = 15.0
"""A silent stream gets a comment this often; proxies close connections after 50 to 120 s."""
PULSES: Final = 6
"""Every so many comments an empty chunk goes too: some clients count parsed chunks only, and give up after 120 s."""


class Completions:
    """The ASGI endpoint of `POST /v1/chat/completions` or `POST /v1/completions`."""

    def __init__(self, form: Form, backends: Backends, stopped: asyncio.Event) -> None:
        self._form: Form = form
        self._backends = backends
        self._stopped = stopped

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; every error is answered in OpenAI's form."""
        exchange = Exchange(scope, receive, send)
        async with answering(exchange):
            body = await json_body(exchange, self._backends.body_bytes)
            request, arguments = self._read(body)

            async def end(error: ApiError) -> None:
                exchange.fail(error.status)
                await exchange.write(sse.event(error.body) + sse.DONE, more=False)

            work = self._serve(exchange, request, arguments, body)
            await until_stopped(exchange, work, self._stopped, end if request.stream else None)

    def _read(self, body: bytes) -> tuple[ChatRequest | CompletionRequest, dict[str, Any]]:
        if self._form == "chat":
            chat = read_chat(body)
            return chat, chat_arguments(chat)
        text = read_completion(body)
        return text, completion_arguments(text)

    async def _serve(
        self, exchange: Exchange, request: ChatRequest | CompletionRequest, arguments: dict[str, Any], body: bytes
    ) -> None:
        """Launch the run that answers, and write its reply.

        Raises:
            ApiError, TartletError: nothing was written yet.
        """
        caller = caller_of(exchange.scope)
        backend = self._backends.of(caller)
        caller.model = request.model or ""
        chosen = target(caller.model, await backend.models.list())
        further = further_fields(request, body)
        if chosen.inferlet:
            arguments = further | arguments
        else:
            check_further(further)
        if chosen.adapter:
            arguments |= {"adapter": chosen.adapter}
        durable = exchange.header(b"x-tartlet-durable") == b"1"
        session = session_of(exchange.scope["headers"], fields_of(body), caller.tenant)
        run = await backend.runs.start(chosen, arguments, durable=durable, session=session)
        caller.program_id = run.program_id
        prefix = "chatcmpl" if self._form == "chat" else "cmpl"
        reply = Reply(
            form=self._form,
            id=f"{prefix}-{run.program_id}",
            created_s=int(time.time()),
            model=request.model or chosen.model,
            choices=choices_of(request),
        )
        try:
            async with closing(run) as events:
                if request.stream:
                    await _Stream(exchange, reply, request).write(events)
                else:
                    await _whole(exchange, reply, events)
        finally:
            caller.saw(run, reply.usage)


async def _whole(exchange: Exchange, reply: Reply, events: AsyncIterator[Event]) -> None:
    async for event in events:
        reply.usage = counting(reply.usage, event)
        match event:
            case Delta() | Reasoned() | Called():
                _check_index(event.choice, reply)
                if reply.takes(event):
                    reply.add(event)
            case Finished():
                _check_index(event.choice, reply)
                if reply.takes(event):
                    reply.finish(event)
            case Refused():
                raise refusal(event)
    await exchange.reply(200, msgspec.json.encode(reply.whole()), [JSON])


class _Stream:
    """One streamed reply. Headers go with the first event, or after `HEADERS_S` of silence."""

    def __init__(self, exchange: Exchange, reply: Reply, request: ChatRequest | CompletionRequest) -> None:
        options = request.stream_options
        self._totals = options is not None and bool(options.include_usage)
        if options is not None and options.continuous_usage_stats:
            reply.usage_in_chunks = "counts"
        elif self._totals:
            reply.usage_in_chunks = "null"
        self._exchange = exchange
        self._reply = reply

    async def write(self, events: AsyncIterator[Event]) -> None:
        """Write the events as chunks.

        Raises:
            ApiError, TartletError: the run failed before anything was written.
        """
        try:
            await self._chunks(events)
        except (ApiError, TartletError) as e:
            if not self._exchange.started:
                raise
            error = e if isinstance(e, ApiError) else from_tartlet(e)
            self._exchange.fail(error.status)
            await self._exchange.write(sse.event(error.body))
        else:
            if self._totals:
                await self._write([self._reply.totals()])
        await self._exchange.write(sse.DONE, more=False)

    async def _chunks(self, events: AsyncIterator[Event]) -> None:
        comments = 0
        async with aclosing(paced(events, lambda: COMMENT_S if self._exchange.started else HEADERS_S)) as coming:
            async for event in coming:
                if event is None:
                    comments += 1
                    await self._wait_on(pulse=comments % PULSES == 0)
                else:
                    await self._event(event)
        await self._write([self._reply.finish(left) for left in self._reply.unfinished()])

    async def _event(self, event: Event) -> None:
        self._reply.usage = counting(self._reply.usage, event)
        match event:
            case Delta(text="", logprobs=None):
                pass
            case Delta() | Reasoned() | Called():
                _check_index(event.choice, self._reply)
                if self._reply.takes(event):
                    await self._write(self._reply.delta(event))
            case Finished():
                _check_index(event.choice, self._reply)
                if self._reply.takes(event):
                    await self._write([self._reply.finish(event)])
            case Refused():
                raise refusal(event)

    async def _wait_on(self, *, pulse: bool) -> None:
        await self._write([self._reply.pulse()] if pulse else [])
        await self._exchange.write(sse.COMMENT)

    async def _write(self, chunks: list[dict[str, Any]]) -> None:
        """Write chunks at once, behind headers and opening chunks if these haven't gone yet."""
        if not self._exchange.started:
            chunks = [*self._reply.opening(), *chunks]
            await self._exchange.start(200, sse.HEADERS)
        if chunks:
            await self._exchange.write(b"".join(map(sse.event, chunks)))


def _check_index(index: int, reply: Reply) -> None:
    """Refuse a choice that wasn't asked for: clients index into the choices that they expect."""
    if index >= reply.choices:
        raise ApiError(500, f"The inferlet answered choice {index} of {reply.choices}.", code="inferlet_error")
