"""The WebSocket of the web page: the state once, then its changes, a few a second."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
from starlette.types import Receive, Scope, Send

from tartlet_gateway.http.exchange import WRITE_S
from tartlet_gateway.http.subprotocol import chosen
from tartlet_gateway.live.hub import EVERY_S, Hub
from tartlet_gateway.runs.caller import caller_of

GOING_AWAY: Final = 1012
"""The close code of a gateway that stops: connect again."""
MOST_PAGES: Final = 200
"""Pages that may be open at a gateway; others get status 503."""


class LiveSocket:
    """The ASGI endpoint."""

    def __init__(self, hub: Hub, stopped: asyncio.Event) -> None:
        self._hub = hub
        self._stopped = stopped
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one page until it goes away."""
        await receive()
        if self._open >= MOST_PAGES:
            await send({"type": "websocket.http.response.start", "status": 503, "headers": [(b"retry-after", b"5")]})
            await send({"type": "websocket.http.response.body", "body": b""})
            return
        await send({"type": "websocket.accept", "subprotocol": chosen(scope)})
        self._open += 1
        tasks = [
            asyncio.ensure_future(work) for work in (self._tell(scope, send), _gone(receive), self._stopped.wait())
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if self._stopped.is_set():
                await send({"type": "websocket.close", "code": GOING_AWAY})
        finally:
            self._open -= 1
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
