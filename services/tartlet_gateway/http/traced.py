"""Continues the trace of a request: what the gateway launches for it belongs to the client's trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tartlet_common.telemetry import names, telemetry
from tartlet_gateway.http.exchange import Outcome
from tartlet_gateway.http.metered import OTHER, RouteOf, method_of

_CONTEXT: Final = {b"traceparent": "traceparent", b"tracestate": "tracestate"}
_FAILED: Final = 500
_TRACE: Final = "tartlet.trace"

Facts = Callable[[Scope], Mapping[str, str]]
"""Returns attributes of a span that the application knows once it has answered, such as the model."""


class Traced:
    """ASGI middleware with a span for each HTTP request, a child of the span that the header `traceparent` names.

    Where telemetry is off, the gateway makes no span and hands the client's trace on.

    Args:
        app: the application.
        route_of: tells the route of a request that the application has answered.
        facts: tells more about that request.
    """

    def __init__(self, app: ASGIApp, route_of: RouteOf, facts: Facts) -> None:
        self._app = app
        self._route_of = route_of
        self._facts = facts
        self._enabled = telemetry.enabled()
        self._tracer = telemetry.tracer()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request within its trace."""
        sent = {_CONTEXT[name]: value.decode("latin-1") for name, value in scope["headers"] if name in _CONTEXT}
        if not (sent or self._enabled):
            await self._app(scope, receive, send)
            return
        token = contexts.attach(telemetry.extract(sent))
        scope[_TRACE] = telemetry.trace_id()
        try:
            if self._enabled and scope["type"] == "http":
                await self._within_span(scope, receive, send)
            else:
                await self._app(scope, receive, send)
        finally:
            contexts.detach(token)

    async def _within_span(self, scope: Scope, receive: Receive, send: Send) -> None:
        outcome = Outcome(scope)

        async def told(message: Message) -> None:
            outcome.see(message)
            await send(message)

        method = method_of(scope["method"])
        # text of errors may come from clients, so exceptions aren't recorded
        span = self._tracer.start_span(method, kind=SpanKind.SERVER)
        scope[_TRACE] = telemetry.trace_id(span)
        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                await self._app(scope, receive, told)
            finally:
                route, status = self._route_of(scope) or OTHER, outcome.status
                span.update_name(f"{method} {route}")
                span.set_attributes(
                    {
                        names.ATTR_HTTP_METHOD: method,
                        names.ATTR_HTTP_ROUTE: route,
                        names.ATTR_HTTP_STATUS: status,
                        **self._facts(scope),
                    }
                )
                if status >= _FAILED:
                    span.set_attribute(names.ATTR_ERROR, str(status))
                    span.set_status(Status(StatusCode.ERROR))


def trace_of(scope: Scope) -> str:
    """Return the trace of a request that the application has served, as 32 hex digits; "" for none."""
    return str(scope.get(_TRACE, ""))
