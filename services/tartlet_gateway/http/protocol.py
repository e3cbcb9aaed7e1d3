"""uvicorn's HTTP/1.1 protocol with a deadline and a bound for request headers, which uvicorn itself doesn't have."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tartlet_gateway.http import refusal
from tartlet_gateway.http.refusal import Refusal

log = logging.getLogger("tartlet.gateway")

HEADERS_S: Final = 10.0
"""How long a client may take from its first byte (or from connecting) to the end of its headers."""
MAX_HEADER_BYTES: Final = 64 << 10
"""The longest request line and headers together."""
MOST_PARTS: Final = 1 << 16
"""Parts in which a body may come: chunks, or what the network delivers at once. Each costs time, also an empty one."""
MANY_PARTS: Final = Refusal(
    b"413 Content Too Large",
    "too_many_parts",
    f"The body came in more than {MOST_PARTS} parts: send it whole, or in longer chunks.",
)
SPARE: Final = 256
"""Connections beyond the bound whose first request is read, so that it is answered. Further ones are closed at once."""
MANY_CONNECTIONS: Final = Refusal(
    b"503 Service Unavailable",
    "too_many_connections",
    "Too many connections are open: send the request again in a while.",
    retry=True,
)
WARN_S: Final = 60.0
"""Seconds between two lines of the log about too many connections."""
_OF_UPGRADE: Final = frozenset({b"upgrade", b"http2-settings"})
"""Headers that offer another protocol, and what `Connection` names them by."""
_AROUND: Final = 4
"""Bytes around a header's name and value: a colon, a space and the end of the line."""


@dataclass(slots=True)
class Room:
    """The connections that a server may have open.

    Attributes:
        most: How many.
        warned_s: When the log was last told that there are too many, as the loop counts seconds.
    """

    most: int
    warned_s: float = float("-inf")


class BoundedProtocol(HttpToolsProtocol):
    """Closes connections whose headers are late or too long, whose bodies have too many parts, and those too many."""

    room: ClassVar[Room] = Room(1 << 20)
    _deadline: asyncio.TimerHandle | None = None
    _header_bytes = 0
    _taken_bytes = 0
    _parts = 0
    _in_headers = True
    _dropping = False
    _beyond = False  # whether the connection is one too many
    _offered = b""  # the method of a request that offers another protocol, until it is parsed again

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline: a client that connects and says nothing is closed. Note whether there is room for it."""
        super().connection_made(transport)
        self._begin_headers()
        beyond = len(self.connections) - self.room.most
        if beyond > 0:
            self._beyond = True
            self._warn()
        if beyond > SPARE:
            self._refuse(MANY_CONNECTIONS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop the deadline with the connection."""
        self._end_headers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count bytes while headers come; refuse the connection past the bound."""
        if self._in_headers:
            self._header_bytes += len(data)
        self._feed(data)
        if self._in_headers and self._header_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            self._refuse(refusal.LONG_HEADERS)

    def on_url(self, url: bytes) -> None:
        """Count the request line."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header: all of them may have come at once, with the beginning of the body behind them."""
        self._count(len(name) + len(value) + _AROUND)
        super().on_header(name, value)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, or has headers or parts past their bound, which end the parsing too."""
        if self._parts > MOST_PARTS:
            self._refuse_body()
        elif self._taken_bytes > MAX_HEADER_BYTES:
            self._refuse(refusal.LONG_HEADERS)
        elif self._replying:
            self.transport.close()  # behind a request whose reply is under way
        else:
            super().send_400_response(msg)

    def on_message_begin(self) -> None:
        """Start the deadline of the next request on a connection that is kept open."""
        super().on_message_begin()
        self._taken_bytes = self._parts = 0
        self._begin_headers()

    def on_headers_complete(self) -> Any:
        """Stop the deadline; refuse a request without room; drop one that comes before the reply to the one before it.

        uvicorn would stop reading until that reply is done, and so not notice a client that goes away. The connection
        closes behind the reply under way, and a client that sends ahead sends again what wasn't answered.

        The head of a request that offers another protocol is passed over: `_feed` gives the parser the request again.
        """
        parser: Any = self.parser
        if parser.should_upgrade() and parser.get_method() != b"CONNECT" and not self._should_upgrade():
            self._offered = parser.get_method()
            return None
        self._end_headers()
        if self._beyond:
            self._dropping = True
            self._refuse(MANY_CONNECTIONS)
            return None
        if self._replying:
            self.cycle.keep_alive = False
            self._dropping = True
            return None
        return super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body, unless its request is dropped; end the parsing past the bound of parts."""
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise ValueError(MOST_PARTS)  # the parser passes it on, and `_feed` calls `send_400_response`
        if not self._dropping:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request's body."""
        if self._offered:
            return
        if self._dropping:
            self._dropping = self._beyond
        else:
            super().on_message_complete()

    def _feed(self, data: bytes) -> None:
        """Parse bytes. Where the parser stops at an offer of another protocol than WebSocket, go on in HTTP/1.1.

        The parser takes what follows such an offer for the other protocol's, and so loses the request's body. A server
        may ignore the offer (RFC 9110, section 7.8): the request is parsed again without it.
        """
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as e:
            if self._offered:
                head, self._offered = self._head(self._offered), b""
                parser: Any = httptools.HttpRequestParser(self)
                parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
                self.parser = parser
                self._feed(head + data[e.args[0] :])
            elif self._should_upgrade() and not self._beyond:
                self.handle_websocket_upgrade()
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def _head(self, method: bytes) -> bytes:
        """Return the head of the request that was parsed last, without the offer of another protocol."""
        lines = [b"%s %s HTTP/1.1" % (method, self.url)]
        for name, value in self.headers:
            kept = value
            if name == b"connection":
                tokens = (token.strip() for token in value.split(b","))
                kept = b", ".join(token for token in tokens if token.lower() not in _OF_UPGRADE)
            if name not in _OF_UPGRADE and (kept or not value):
                lines.append(name + b": " + kept)
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _count(self, size: int) -> None:
        self._taken_bytes += size
        if self._taken_bytes > MAX_HEADER_BYTES:
            raise ValueError(MAX_HEADER_BYTES)  # the parser passes it on, and uvicorn calls `send_400_response`

    def handle_websocket_upgrade(self) -> None:
        """Hand a handshake on; refuse one whose path or names of headers the WebSocket's own parser can't read."""
        if self.url.isascii() and all(name.isascii() for name, _ in self.headers):
            super().handle_websocket_upgrade()
        else:
            self._refuse(refusal.UNREADABLE)

    @property
    def _replying(self) -> bool:
        cycle: Any = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    def _warn(self) -> None:
        now_s = self.loop.time()
        if now_s - self.room.warned_s >= WARN_S:
            self.room.warned_s = now_s
            log.warning("%d connections are open: further ones are refused", self.room.most)

    def _begin_headers(self) -> None:
        if self._deadline is None:
            self._header_bytes = 0
            self._in_headers = True
            self._deadline = self.loop.call_later(HEADERS_S, self._refuse, refusal.LATE)

    def _end_headers(self) -> None:
        self._in_headers = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, reply: Refusal) -> None:
        """Answer and close; where a reply is under way, only close: bytes between its chunks would be read as its."""
        self._end_headers()
        if self._replying:
            self.transport.close()
        elif not self.transport.is_closing():
            self.transport.write(reply.to_bytes())
            self.transport.close()

    def _refuse_body(self) -> None:
        """Answer a request whose body is being read, and close; where a reply has begun or been sent, only close."""
        cycle: Any = self.cycle
        if self._replying and not (self._dropping or cycle.response_started):
            cycle.disconnected = True  # the application's own reply would come behind this one
            cycle.message_event.set()
            self.transport.write(MANY_PARTS.to_bytes())
        self.transport.close()


def bounded(most: int) -> type[BoundedProtocol]:
    """Return the protocol of a server that has at most `most` connections open; further ones get status 503."""
    return type("Bounded", (BoundedProtocol,), {"room": Room(most)})
