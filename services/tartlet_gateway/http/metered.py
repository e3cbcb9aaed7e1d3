"""Measures requests: how many are under way, how long they take, and how long until the first byte of a reply."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from opentelemetry.metrics import CallbackOptions, Observation
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tartlet_common.telemetry import names, telemetry
from tartlet_gateway.http.exchange import Outcome

OTHER: Final = "other"
"""The route of a path that no route takes, and the method that HTTP doesn't know."""
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})

RouteOf = Callable[[Scope], str]
"""Returns the route's pattern that took a request, such as `/v1/models/{name:path}`; "" if none did."""


class Metered:
    """ASGI middleware that measures every request of the application.

    Labels are methods, patterns of routes and statuses: their number is bounded, whatever clients send.

    Args:
        app: the application.
        route_of: tells the route of a request that the application has answered.
    """

    def __init__(self, app: ASGIApp, route_of: RouteOf) -> None:
        self._app = app
        self._route_of = route_of
        self._active = 0
        self._duration = telemetry.histogram(names.METRIC_HTTP_DURATION, "s")
        self._first = telemetry.histogram(names.METRIC_FIRST_BYTE, "s")
        telemetry.meter().create_observable_up_down_counter(names.METRIC_HTTP_ACTIVE, [self._observe_active])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on, and record its times when the application is done with it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s = time.perf_counter()
        outcome, first_s = Outcome(scope), 0.0

        async def told(message: Message) -> None:
            nonlocal first_s
            outcome.see(message)
            if not first_s and message.get("body"):
                first_s = time.perf_counter() - began_s
            await send(message)

        self._active += 1
        try:
            await self._app(scope, receive, told)
        finally:
            self._active -= 1
            labels = _labels(scope["method"], self._route_of(scope), outcome.status)
            telemetry.later(self._record, time.perf_counter() - began_s, first_s, labels)

    def _record(self, duration_s: float, first_s: float, labels: Mapping[str, str | int]) -> None:
        self._duration.record(duration_s, labels)
        if first_s:
            self._first.record(first_s, labels)

    def _observe_active(self, _: CallbackOptions) -> Iterable[Observation]:
        telemetry.flush()  # gauges are asked before histograms are read
        return [Observation(self._active)]


def _labels(method: str, route: str, status: int) -> dict[str, str | int]:
    return {
        names.ATTR_HTTP_METHOD: method_of(method),
        names.ATTR_HTTP_ROUTE: route or OTHER,
        names.ATTR_HTTP_STATUS: status,
    }


def method_of(method: str) -> str:
    """Return a method as labels have it: those that HTTP doesn't know are one."""
    return method if method in _METHODS else OTHER
