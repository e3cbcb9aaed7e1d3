"""uvicorn's WebSocket protocol, which ends the connections of clients whose bytes or texts can't be read."""

from __future__ import annotations

import logging
from typing import Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

log = logging.getLogger("tartlet.gateway")
_NO_FRAME: Final = 1002
_NO_TEXT: Final = 1007


class FrameProtocol(WebSocketsSansIOProtocol):
    """Closes connections whose frames can't be read."""

    def data_received(self, data: bytes) -> None:
        """Take bytes; end the connection if its parser fails at them."""
        try:
            super().data_received(data)
        except Exception as e:  # noqa: BLE001 - whatever the parser makes of such bytes
            log.warning("a WebSocket's bytes can't be read: %r", e)
            self._give_up(_NO_FRAME)

    def send_receive_event_to_app(self) -> None:
        """Hand a message on; end the connection if a text is no UTF-8."""
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.frames = []
                self.conn.send_close(_NO_TEXT)
                self.transport.write(b"".join(self.conn.data_to_send()))
                self._give_up(_NO_TEXT)
                return
        super().send_receive_event_to_app()

    def _give_up(self, code: int) -> None:
        self.close_sent = True
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": ""})
        self.transport.close()
