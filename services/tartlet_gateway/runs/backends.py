"""The runtime as each tenant sees it: launches for the tenant alone, and the models that serve the tenant."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import NamedTuple

import tartlet
from tartlet_common.rpc.endpoints import Tls
from tartlet_gateway.runs.caller import Caller
from tartlet_gateway.runs.lasting import Lasting
from tartlet_gateway.runs.launch import Runs
from tartlet_gateway.runs.models import Models


class Backend(NamedTuple):
    """One tenant's view."""

    client: tartlet.AsyncClient
    runs: Runs
    models: Models


class Keeping(NamedTuple):
    """For how long responses are stored, and for how long a streamed one goes on without its client, in seconds."""

    stored_s: float = 0.0
    resume_s: float = 0.0


class Backends:
    """Makes one backend for each tenant at its first request; they are closed together."""

    def __init__(
        self,
        address: str,
        tls: Tls | None,
        control: str | None,
        body_bytes: int,
        kept: Keeping = Keeping(),  # noqa: B008 - it is a value
    ) -> None:
        self.body_bytes = body_bytes
        self.kept = kept
        self.lasting = Lasting()
        self._address = address
        self._control = control
        self._tls = tls
        self._known: dict[str | None, Backend] = {}
        self._closing = AsyncExitStack()
        self._before: list[Callable[[], Awaitable[None]]] = []

    def of(self, caller: Caller) -> Backend:
        """Return the backend of a caller's tenant."""
        known = self._known.get(caller.tenant)
        if known is None:
            client = tartlet.AsyncClient(self._address, control=self._control, tls=self._tls, tenant=caller.tenant)
            self._closing.push_async_callback(client.close)
            known = Backend(client, Runs(client), Models(client))
            self._known[caller.tenant] = known
        return known

    def on_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Have `close` called before the connections are closed."""
        self._before.append(close)

    async def close(self) -> None:
        """Close all connections."""
        for close in self._before:
            await close()
        await self.lasting.close()
        await self._closing.aclose()
