"""The runtime as each tenant sees it: launches for the tenant alone, and the models that serve the tenant."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NamedTuple

from starlette.types import ASGIApp, Receive, Scope, Send

import tartlet
from tartlet_common.rpc.endpoints import Tls
from tartlet_gateway.runs.caller import Caller, caller_of
from tartlet_gateway.runs.lasting import Lasting
from tartlet_gateway.runs.launch import Runs
from tartlet_gateway.runs.models import Models

log = logging.getLogger("tartlet.gateway")

MOST_IDLE: Final = 128
"""How many tenants keep open connections that nothing uses: those whose last request is the latest."""


class Backend(NamedTuple):
    """One tenant's view.

    Attributes:
        client: Acts for the tenant alone.
        runs: Launches inferlets for the tenant's requests.
        models: The models that serve the tenant.
        hold: Keeps the client open beyond a request, until what `hold` returns is called, once.
    """

    client: tartlet.AsyncClient
    runs: Runs
    models: Models
    hold: Callable[[], Callable[[], None]]


class Keeping(NamedTuple):
    """For how long responses are stored, and for how long a streamed one goes on without its client, in seconds."""

    stored_s: float = 0.0
    resume_s: float = 0.0


class Backends:
    """Makes one backend for each tenant at its first request.

    A backend whose tenant has no open request, and no run that is followed, is closed when `most_idle` others have been
    used since. Its tenant gets another one with its next request.
    """

    def __init__(
        self,
        address: str,
        tls: Tls | None,
        control: str | None,
        body_bytes: int,
        kept: Keeping = Keeping(),  # noqa: B008 - it is a value
        most_idle: int = MOST_IDLE,
    ) -> None:
        self.body_bytes = body_bytes
        self.kept = kept
        self.lasting = Lasting(hold=self.hold)
        self._address = address
        self._control = control
        self._tls = tls
        self._most_idle = most_idle
        self._known: dict[str | None, Backend] = {}
        self._holders: Counter[str | None] = Counter()
        self._idle: dict[str | None, None] = {}  # those of `_known` without holders, the one used last behind
        self._closing: set[asyncio.Task[None]] = set()
        self._before: list[Callable[[], Awaitable[None]]] = []

    def of(self, caller: Caller) -> Backend:
        """Return the backend of a caller's tenant. It stays open while somebody holds it, as each request does."""
        tenant = caller.tenant
        known = self._known.get(tenant)
        if known is None:
            client = tartlet.AsyncClient(self._address, control=self._control, tls=self._tls, tenant=tenant)
            known = Backend(client, Runs(client), Models(client), partial(self.hold, tenant))
            self._known[tenant] = known
            if not self._holders[tenant]:
                self._rest(tenant)
        return known

    def hold(self, tenant: str | None) -> Callable[[], None]:
        """Keep a tenant's backend open until what this returns is called, once."""
        self._holders[tenant] += 1
        self._idle.pop(tenant, None)
        return partial(self._release, tenant)

    def held(self, app: ASGIApp) -> ASGIApp:
        """Return an application that holds the backend of a request's tenant until the request ends."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            release = self.hold(caller_of(scope).tenant)
            try:
                await app(scope, receive, send)
            finally:
                release()

        return serve

    def _release(self, tenant: str | None) -> None:
        self._holders[tenant] -= 1
        if not self._holders[tenant]:
            del self._holders[tenant]
            self._rest(tenant)

    def _rest(self, tenant: str | None) -> None:
        """Note that nobody holds a tenant's backend; close the backend that has been idle longest, if too many are."""
        if tenant not in self._known:
            return
        self._idle[tenant] = None
        if len(self._idle) > self._most_idle:
            oldest = next(iter(self._idle))
            del self._idle[oldest]
            closing = asyncio.ensure_future(self._known.pop(oldest).client.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closed)

    def _closed(self, closing: asyncio.Task[Any]) -> None:
        self._closing.discard(closing)
        if not closing.cancelled() and (e := closing.exception()) is not None:
            log.error("the connections of an idle tenant can't be closed", exc_info=e)

    def on_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Have `close` called before the connections are closed."""
        self._before.append(close)

    async def close(self) -> None:
        """Close all connections."""
        for close in self._before:
            await close()
        await self.lasting.close()
        clients = [backend.client for backend in self._known.values()]
        self._known.clear()
        self._idle.clear()
        await asyncio.gather(*self._closing, *(client.close() for client in clients))
