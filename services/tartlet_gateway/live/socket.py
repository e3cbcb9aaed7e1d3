"""The WebSocket of the web page: the state once, then its changes, a few a second."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

import msgspec
from starlette.types import Receive, Scope, Send

from tartlet_gateway.http.exchange import GOING_AWAY, WRITE_S
from tartlet_gateway.http.subprotocol import chosen
from tartlet_gateway.live.hub import EVERY_S, Hub
from tartlet_gateway.runs.caller import caller_of

MOST_PAGES: Final = 200
"""Pages that may be open at a gateway; others get status 503."""
MOST_OF_A_TENANT: Final = 50
"""Those of them that may be one tenant's."""


class LiveSocket:
    """The ASGI endpoint."""

    def __init__(self, hub: Hub, stopped: asyncio.Event) -> None:
        self._hub = hub
        self._stopped = stopped
        self._open: Counter[str | None] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one page until it goes away."""
        await receive()
        tenant = caller_of(scope).tenant
        if self._open.total() >= MOST_PAGES or self._open[tenant] >= MOST_OF_A_TENANT:
            await send({"type": "websocket.http.response.start", "status": 503, "headers": [(b"retry-after", b"5")]})
            await send({"type": "websocket.http.response.body", "body": b""})
            return
        self._open[tenant] += 1
        tasks: list[asyncio.Future[object]] = []
        try:
            await send({"type": "websocket.accept", "subprotocol": chosen(scope)})
            works = (self._tell(scope, send), _gone(receive), self._stopped.wait())
            tasks += [asyncio.ensure_future(work) for work in works]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if self._stopped.is_set():
                await send({"type": "websocket.close", "code": GOING_AWAY})
        finally:
            self._open[tenant] -= 1
            if not self._open[tenant]:
                del self._open[tenant]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _tell(self, scope: Scope, send: Send) -> None:
        async with self._hub.view(caller_of(scope)) as view:
            while True:
                if view.pending:
                    async with asyncio.timeout(WRITE_S):
                        await send({"type": "websocket.send", "text": msgspec.json.encode(view.take()).decode()})
                await asyncio.sleep(EVERY_S)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "websocket.disconnect":
        pass
