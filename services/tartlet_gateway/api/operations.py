"""All operations of the gateway: method, path, endpoint, and what the OpenAPI document says."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from tartlet_gateway.answers.endpoint import Answers
from tartlet_gateway.http.exchange import Exchange
from tartlet_gateway.messages.counting import CountTokens
from tartlet_gateway.messages.form import MessagesForm
from tartlet_gateway.messages.requests import CountRequest, MessagesRequest
from tartlet_gateway.openai.completions import Completions
from tartlet_gateway.openai.errors import ApiError, answer
from tartlet_gateway.openai.models import ModelsEndpoint
from tartlet_gateway.openai.requests import ChatRequest, CompletionRequest
from tartlet_gateway.openai.tokens import DetokenizeRequest, TokenizeRequest, Tokens
from tartlet_gateway.page.files import Page
from tartlet_gateway.programs import handlers
from tartlet_gateway.programs.endpoint import Endpoint, Handler
from tartlet_gateway.programs.requests import Entry, Launch, Message, Program
from tartlet_gateway.responses import stored
from tartlet_gateway.responses.endpoint import Responses
from tartlet_gateway.responses.recordings import Recordings
from tartlet_gateway.responses.requests import ResponseRequest
from tartlet_gateway.runs.backends import Backends
from tartlet_gateway.runs.caller import Caller

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
HTML: Final = "text/html"
_SOURCES: Final = ("multipart/form-data", "text/x-python", "application/zip", "application/wasm")


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation.

    Attributes:
        method: The HTTP method.
        path: The path as Starlette writes it, such as `/v1/programs/{name}`.
        app: What serves it.
        summary: What it does, a sentence.
        body: The type of a body in JSON, None for none.
        query: Query parameters and what they say.
        replies: Content types of a good reply.
        status: The status of a good reply.
        files: Whether the body may be a program's file in place of JSON.
        is_open: Whether no key is asked for.
    """

    method: str
    path: str
    app: ASGIApp
    summary: str
    body: Any = None
    query: tuple[tuple[str, str], ...] = ()
    replies: tuple[str, ...] = (JSON,)
    status: int = 200
    files: bool = False
    is_open: bool = False

    @property
    def content_types(self) -> tuple[str, ...]:
        """Content types of the body."""
        return () if self.body is None else (JSON, *(_SOURCES if self.files else ()))


def operations(backends: Backends, stopped: asyncio.Event) -> list[Operation]:
    """Return all operations; once `stopped` is set, requests under way end with an error."""
    page = Page()
    shown = [
        Operation("GET", "/", page, "Show the web page.", replies=(HTML,), is_open=True),
        Operation("GET", "/page/{name:path}", page, "Serve a file of the web page.", replies=(HTML,), is_open=True),
    ]
    return [*_openai(backends, stopped), *_programs(backends, stopped), *shown]


def _openai(backends: Backends, stopped: asyncio.Event) -> list[Operation]:
    models = ModelsEndpoint(backends)
    chat, text = (Completions(form, backends, stopped) for form in ("chat", "text"))
    tokenize, detokenize = (Tokens(kind, backends, stopped) for kind in ("tokenize", "detokenize"))
    both = (JSON, EVENTS)
    recordings = Recordings(backends.kept.resume_s)
    backends.on_close(recordings.close)
    responses = Responses(backends, recordings, stopped)
    messages = Answers(MessagesForm(), backends, stopped)
    counting = CountTokens(backends, stopped)
    return [
        Operation("GET", "/v1/models", models, "List models, and inferlets of the catalogue as MODEL/INFERLET."),
        Operation("GET", "/v1/models/{name:path}", models, "Show one model."),
        Operation("POST", "/v1/chat/completions", chat, "Answer a chat.", ChatRequest, replies=both),
        Operation("POST", "/v1/responses", responses, "Answer, as items.", ResponseRequest, replies=both),
        *_stored(backends, recordings, stopped),
        Operation("POST", "/v1/messages", messages, "Answer, as blocks.", MessagesRequest, replies=both),
        Operation("POST", "/v1/messages/count_tokens", counting, "Count a prompt's tokens.", CountRequest),
        Operation("POST", "/v1/completions", text, "Complete texts.", CompletionRequest, replies=both),
        Operation("POST", "/tokenize", tokenize, "Turn text or a chat into tokens.", TokenizeRequest),
        Operation("POST", "/detokenize", detokenize, "Turn tokens into text.", DetokenizeRequest),
        Operation("POST", "/v1/embeddings", _no_embeddings, "Refused: no engine makes embeddings.", dict[str, Any]),
        Operation("GET", "/health", _Health(backends), "Tell whether an engine can answer.", is_open=True),
    ]


def _stored(backends: Backends, recordings: Recordings, stopped: asyncio.Event) -> list[Operation]:
    def of(handler: stored.Handler) -> ASGIApp:
        return stored.Stored(handler, backends, recordings, stopped)

    one = "/v1/responses/{name}"
    events = (
        ("stream", "true: the response's events"),
        ("starting_after", "the number of the last event that the client has"),
    )
    page = (("limit", "items of a page, 1 to 100"), ("order", "asc or desc"), ("after", "the last item before"))
    return [
        Operation("GET", one, of(stored.get), "Show a response.", query=events, replies=(JSON, EVENTS)),
        Operation("DELETE", one, of(stored.delete), "Delete a response."),
        Operation("POST", f"{one}/cancel", of(stored.cancel), "End a background response."),
        Operation("GET", f"{one}/input_items", of(stored.items), "List a response's input.", query=page),
    ]


def _programs(backends: Backends, stopped: asyncio.Event) -> list[Operation]:
    def of(handler: Handler) -> ASGIApp:
        return Endpoint(handler, backends, stopped)

    one, entry = "/v1/programs/{name}", "/v1/inferlets/{name:path}"
    ended = (("ended", "true: also programs that have ended"),)
    offset = (("offset", "the number of the first event; the header Last-Event-ID goes on behind an event"),)
    wait = (("wait_s", f"how long to wait, at most {handlers.MAX_WAIT_S:g} s; then status 202"),)
    every = (("every_s", "seconds between events, 0.1 to 60; 0.25 if it is left out"),)
    turns = (
        ("first", "the number of the first turn, from 1"),
        ("count", f"turns of a page, 1 to {handlers.MAX_TURNS}; 50 if it is left out"),
        ("texts", "true: also what programs, models and clients wrote"),
    )
    reason = (("reason", "told to the program's clients"),)
    both = (JSON, EVENTS)
    return [
        Operation(
            "POST",
            "/v1/programs",
            of(handlers.launch),
            "Launch a program.",
            Launch,
            replies=both,
            status=201,
            files=True,
        ),
        Operation("GET", "/v1/programs", of(handlers.programs), "List programs.", query=ended),
        Operation("POST", "/v1/programs/validate", of(handlers.validate), "Check a program.", Program, files=True),
        Operation("GET", one, of(handlers.program), "Show a program."),
        Operation("DELETE", one, of(handlers.kill), "End a program.", query=reason),
        Operation(
            "GET", f"{one}/events", of(handlers.events), "Follow a program's output.", query=offset, replies=(EVENTS,)
        ),
        Operation(
            "GET", f"{one}/trace", of(handlers.trace), "Follow a program's calls.", query=every, replies=(EVENTS,)
        ),
        Operation("GET", f"{one}/journal", of(handlers.journal), "Show a recorded run's turns.", query=turns),
        Operation("GET", f"{one}/result", of(handlers.result), "Wait for a program's end.", query=wait),
        Operation("POST", f"{one}/messages", of(handlers.send), "Send a message to a program.", Message),
        Operation("POST", "/v1/sessions", of(handlers.start_session), "Name a new session.", status=201),
        Operation("DELETE", "/v1/sessions/{name}", of(handlers.end_session), "End a session."),
        Operation("GET", "/v1/inferlets", of(handlers.entries), "List the catalogue."),
        Operation("PUT", entry, of(handlers.put), "Put a program into the catalogue.", Entry, files=True),
        Operation("GET", entry, of(handlers.get), "Show a program of the catalogue with its source."),
        Operation("DELETE", entry, of(handlers.delete), "Remove a program from the catalogue."),
    ]


class _Health:
    """`GET /health`: 200 while an engine can answer, else 503."""

    def __init__(self, backends: Backends) -> None:
        self._backends = backends

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        try:
            ready = any(model.ready for model in await self._backends.of(Caller()).models.list())
        except Exception:  # noqa: BLE001 - whatever it is, the answer to a probe is no
            ready = False
        if ready:
            await exchange.reply(200, b"ok\n", [(b"content-type", b"text/plain")])
        else:
            await answer(exchange, ApiError(503, "No engine is ready.", code="no_engine"))


async def _no_embeddings(scope: Scope, receive: Receive, send: Send) -> None:
    told = "No engine here makes embeddings."
    await answer(Exchange(scope, receive, send), ApiError(400, told, code="unsupported_endpoint"))
