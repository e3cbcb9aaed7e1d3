"""The routes of the OpenAI API, and the errors of requests that no route takes."""

from __future__ import annotations

import asyncio

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from tartlet_gateway.http.exchange import Exchange
from tartlet_gateway.openai.completions import Completions
from tartlet_gateway.openai.errors import ApiError, answer
from tartlet_gateway.openai.models import ModelsEndpoint
from tartlet_gateway.openai.tokens import Tokens
from tartlet_gateway.runs.backends import Backends
from tartlet_gateway.runs.caller import Caller


def router(backends: Backends, stopped: asyncio.Event) -> Router:
    """Return the application that serves the API; once `stopped` is set, completions under way end with an error."""
    listing = _only("GET", ModelsEndpoint(backends))
    return Router(
        [
            Route("/v1/models", listing),
            Route("/v1/models/{name:path}", listing),
            Route("/v1/chat/completions", _only("POST", Completions("chat", backends, stopped))),
            Route("/v1/completions", _only("POST", Completions("text", backends, stopped))),
            Route("/tokenize", _only("POST", Tokens("tokenize", backends, stopped))),
            Route("/detokenize", _only("POST", Tokens("detokenize", backends, stopped))),
            Route("/v1/embeddings", _only("POST", _no_embeddings)),
            Route("/health", _only("GET", _Health(backends))),
        ],
        redirect_slashes=False,
        default=_unknown,
    )


def pattern(routes: Router, scope: Scope) -> str:
    """Return the pattern of the route that took a request, such as `/v1/models/{name:path}`; "" if none did."""
    taken = scope.get("endpoint")
    return next((r.path for r in routes.routes if isinstance(r, Route) and r.endpoint is taken), "")


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


class _only:  # noqa: N801 - used like a decorator
    """Lets one method through to an endpoint; any other gets 405 in the API's form."""

    def __init__(self, method: str, app: ASGIApp) -> None:
        self._method = method
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == self._method:
            await self._app(scope, receive, send)
        else:
            error = ApiError(405, f"Use {self._method} here.")
            await answer(Exchange(scope, receive, send), error)


async def _no_embeddings(scope: Scope, receive: Receive, send: Send) -> None:
    told = "No engine here makes embeddings."
    await answer(Exchange(scope, receive, send), ApiError(400, told, code="unsupported_endpoint"))


async def _unknown(scope: Scope, receive: Receive, send: Send) -> None:
    told = f"There is no {scope['method']} {scope['path'][:200]}; the API begins at /v1."
    await answer(Exchange(scope, receive, send), ApiError(404, told))
