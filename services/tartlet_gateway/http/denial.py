"""HTTP replies to WebSocket handshakes, so that a handshake is refused as a request would be."""

from __future__ import annotations

from starlette.types import Message, Send


def denying(send: Send) -> Send:
    """Return a `send` that turns an HTTP reply into the refusal of a handshake; other messages pass unchanged."""

    async def told(message: Message) -> None:
        if message["type"].startswith("http.response."):
            message = {**message, "type": f"websocket.{message['type']}"}
        await send(message)

    return told
