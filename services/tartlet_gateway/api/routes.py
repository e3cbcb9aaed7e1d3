"""The router over all operations, and the errors of requests that no operation takes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.routing import Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from tartlet_gateway.api.document import document
from tartlet_gateway.api.operations import Operation, operations
from tartlet_gateway.http.exchange import Exchange
from tartlet_gateway.live.hub import Hub
from tartlet_gateway.live.socket import LiveSocket
from tartlet_gateway.openai.errors import JSON, ApiError, answer
from tartlet_gateway.programs.socket import Socket
from tartlet_gateway.runs.backends import Backends

SOCKET = "/v1/programs/socket"
LIVE = "/v1/live"
RESPONSES = "/v1/responses"


def router(backends: Backends, stopped: asyncio.Event) -> Router:
    """Return the application that serves the API; once `stopped` is set, requests under way end with an error."""
    served = operations(backends, stopped)
    described = _Document(served)
    own = Operation("GET", "/openapi.json", described, "Describe the API, as OpenAPI 3.1.")
    described.operations.append(own)
    paths: dict[str, dict[str, ASGIApp]] = {}
    for operation in (*served, own):
        paths.setdefault(operation.path, {})[operation.method] = operation.app
    routes = [Route(path, _Methods(apps)) for path, apps in paths.items()]
    return Router(
        [
            WebSocketRoute(SOCKET, Socket(backends, stopped)),
            WebSocketRoute(LIVE, LiveSocket(Hub(backends), stopped)),
            WebSocketRoute(RESPONSES, _NoSocket()),
            *routes,
        ],
        redirect_slashes=False,
        default=_unknown,
    )


def pattern(routes: Router, scope: Scope) -> str:
    """Return the pattern of the route that took a request, such as `/v1/models/{name:path}`; "" if none did."""
    taken = scope.get("endpoint")
    return next((r.path for r in routes.routes if isinstance(r, Route) and r.endpoint is taken), "")


class _Document:
    """`GET /openapi.json`."""

    def __init__(self, served: list[Operation]) -> None:
        self.operations = list(served)
        self._text = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._text = self._text or document(self.operations)
        await Exchange(scope, receive, send).reply(200, self._text, [JSON])


class _Methods:
    """Lets a path's methods through to their endpoints; any other gets 405 in the API's form."""

    def __init__(self, apps: Mapping[str, ASGIApp]) -> None:
        self._apps = apps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._apps.get(scope["method"])
        if app is not None:
            await app(scope, receive, send)
            return
        allowed = ", ".join(sorted(self._apps))
        error = ApiError(405, f"Use {allowed} here.")
        await answer(Exchange(scope, receive, send), error, [*error.headers, (b"allow", allowed.encode())])


class _NoSocket:
    """Refuses the handshake of a WebSocket, and says what to send instead."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        told = f"Responses are not offered over a WebSocket: send POST {RESPONSES}, with stream: true for events."
        await answer(Exchange(scope, receive, send), ApiError(400, told, code="websocket_not_offered"))


async def _unknown(scope: Scope, receive: Receive, send: Send) -> None:
    told = f"There is no {scope['method']} {scope['path'][:200]}; the API begins at /v1."
    await answer(Exchange(scope, receive, send), ApiError(404, told))
