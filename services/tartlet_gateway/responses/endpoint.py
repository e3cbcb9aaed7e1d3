"""`POST /v1/responses`: a response that is stored goes on without its client, or waits for it to come back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from tartlet_common.errors.registry import TartletError
from tartlet_gateway.answers.endpoint import Answers, encoded, take
from tartlet_gateway.http.exchange import Exchange
from tartlet_gateway.openai import sse
from tartlet_gateway.openai.completions import COMMENT_S, HEADERS_S
from tartlet_gateway.openai.errors import JSON, ApiError
from tartlet_gateway.openai.requests import ChatRequest
from tartlet_gateway.responses.form import ResponsesForm
from tartlet_gateway.responses.recordings import Recording, Recordings
from tartlet_gateway.responses.records import Record, ending, event_of, input_items, response_of
from tartlet_gateway.responses.replies import Reply
from tartlet_gateway.responses.requests import ResponseRequest, chat_of
from tartlet_gateway.responses.shelf import Shelf
from tartlet_gateway.responses.tapes import Tape
from tartlet_gateway.runs.backends import Backends
from tartlet_gateway.runs.caller import caller_of
from tartlet_gateway.runs.sessions import ALONE, Session, own_session

SETTLE_S: Final = 1.0
"""How long a request waits for the end of a response whose run may have ended."""
AT_ONCE: Final = 1000
"""Events of a response that are told before other requests get their turn."""


Keep: TypeAlias = Callable[[], Awaitable[None]]


class Responses(Answers[ResponseRequest]):
    """The endpoint."""

    def __init__(self, backends: Backends, recordings: Recordings, stopped: asyncio.Event) -> None:
        super().__init__(ResponsesForm(), backends, stopped)
        self._recordings = recordings

    async def stop(self, exchange: Exchange, request: ResponseRequest, error: ApiError) -> None:
        """End a stream: the client of a stored one goes on at another gateway, any other is told why."""
        if self._stores(request):
            await exchange.write(b"", more=False)
        else:
            await super().stop(exchange, request, error)

    def _stores(self, request: ResponseRequest) -> bool:
        return request.store is not False and self._backends.kept.stored_s > 0

    async def answer(self, exchange: Exchange, request: ResponseRequest, chat: ChatRequest, session: Session) -> None:
        """Launch the run that answers, and write its reply."""
        caller = caller_of(exchange.scope)
        backend = self._backends.of(caller)
        shelf = Shelf(backend.client, self._backends.kept.stored_s, backend.hold)
        root = ""
        if request.previous_response_id is not None:
            records = await self._conversation(request.previous_response_id, shelf)
            root = records[0].id
            chat = chat_of(request, [*input_items(records), *response_of(records[-1])["output"]])
            if session == ALONE:
                session = own_session(caller.tenant, f"response {root}")
        if not self._stores(request):
            if request.background:
                told = "background: such a response must be stored, and this request or this server stores none."
                raise ApiError(400, told, param="background", code="unsupported_parameter")
            await super().answer(exchange, request, chat, session)
            return
        lasting = request.background or request.stream
        durable = bool(request.background) or exchange.header(b"x-tartlet-durable") == b"1"
        run, model = await self.launch(exchange, request, chat, session, tied=not lasting, durable=durable)
        record = Record(program_id=run.program_id, model=model, created_s=int(time.time()), request=request, root=root)
        recording = self._recordings.begin(record, run, shelf, caller.outlive())
        try:
            await self._told(exchange, recording)
        finally:
            caller.tokens = recording.usage.prompt_tokens + recording.usage.completion_tokens
            if not (recording.ended or lasting):
                await recording.abort()

    async def _told(self, exchange: Exchange, recording: Recording) -> None:
        request = recording.record.request
        if request.background:
            await self._kept(recording)
        if request.stream:
            with recording.read():
                await stream(exchange, recording, keep=None if request.background else partial(self._kept, recording))
            return
        if not request.background:
            await recording.wait_end()
            if recording.error is not None:
                raise recording.error
            reply = response_of(recording.record) | {"store": recording.stored}
        else:
            reply = recording.record.reply().now("queued")
        await exchange.reply(200, msgspec.json.encode(reply), [JSON])

    async def _kept(self, recording: Recording) -> None:
        """Store the response while it runs. One that needn't be stored goes on without."""
        request = recording.record.request
        try:
            await recording.keep()
        except (ApiError, TartletError):
            recording.stored = False
            if request.store or request.background:
                await recording.abort()
                raise

    async def _conversation(self, given: str, shelf: Shelf) -> list[Record]:
        """Return the response that a request names as the one before, behind those before it."""
        last = await shelf.previous(given)
        if last.state == "running":
            recording = await self._recordings.of(last, shelf)
            await recording.wait_end(SETTLE_S)
            if recording.record.state == "running" or not recording.ended:
                told = "previous_response_id: this response still runs: wait for its end, or cancel it."
                raise ApiError(400, told, param="previous_response_id", code="previous_response_not_complete")
            last = recording.record
        return await shelf.conversation(last)


async def stream(exchange: Exchange, tape: Tape, *, after: int = -1, keep: Keep | None = None) -> None:
    """Write a response's events behind the number `after`, to its end.

    Args:
        exchange: the request.
        tape: the response.
        after: the number of the last event that the client has.
        keep: stores the response before its first event is told; None: it is stored.

    Raises:
        ApiError: the run failed before it said anything, or can't be followed, and nothing was written.
    """
    reply: Reply | None = None
    at = 0
    while True:
        more = await tape.wait(at, COMMENT_S if exchange.started else HEADERS_S)
        ended, length = tape.ended, tape.length
        told: list[dict[str, Any]] = []
        if reply is None:
            if tape.error is not None and (tape.lost or (keep is not None and not tape.said)):
                raise tape.error
            if keep is not None:
                await keep()
            reply = tape.record.reply(stored=tape.stored)
            told = reply.begin()
        upto = min(length, at + AT_ONCE)
        for line in tape.record.tape[at:upto]:
            told += take(reply, event_of(line))
        at = upto
        ends = ended and at == length
        if ends and not tape.lost:
            reply.stored = tape.stored
            told += ending(tape.record, reply)
        if not exchange.started:
            await exchange.start(200, sse.HEADERS)
        news = b"".join(encoded(event) for event in told if event["sequence_number"] > after)
        if not more:
            news += sse.COMMENT
        if news:
            await exchange.write(news)
        if ends:
            if tape.error is not None and tape.record.state != "cancelled":
                exchange.fail(tape.error.status)
            break
        await asyncio.sleep(0)  # a long response is no reason to keep others waiting
    await exchange.write(b"", more=False)
