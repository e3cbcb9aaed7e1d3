"""A bare ASGI application that answers a body with one server-sent event: the floor of HTTP on the gateway's server."""

from __future__ import annotations

import sys
from typing import Any

import uvicorn

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'


async def echo(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Read the body, then send an event."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    await send({"type": "http.response.body", "body": EVENT, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


if __name__ == "__main__":
    uvicorn.run(
        echo,
        port=int(sys.argv[1]),
        log_level="warning",
        loop="uvloop",
        http="httptools",
        access_log=False,
        timeout_keep_alive=300,
    )
