"""Server-sent events in the subset that all clients of the OpenAI API read: `data:` lines and comments."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tartlet_gateway.http.exchange import Headers

HEADERS: Final[Headers] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
COMMENT: Final = b": waiting\n\n"
"""Keeps proxies from closing a silent connection. Clients skip a comment while no event carries an id."""
DONE: Final = b"data: [DONE]\n\n"

_encoder: Final = msgspec.json.Encoder()


def event(value: dict[str, Any]) -> bytes:
    r"""Return one event.

    Example:
        >>> event({"a": 1})
        b'data: {"a":1}\n\n'
    """
    return b"data: " + _encoder.encode(value) + b"\n\n"
