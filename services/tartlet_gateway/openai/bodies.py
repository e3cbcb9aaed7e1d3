"""The body of a request as bytes, refused in OpenAI's form if it is no JSON, too long or too late."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Final, TypeVar

import msgspec

from tartlet_gateway.http.exchange import BodyLateError, BodyTooLargeError, Exchange
from tartlet_gateway.openai.errors import ApiError, from_validation

T = TypeVar("T")
MOST_DEEP: Final = 100
"""How deep a body may be nested: what reads it later goes down with each level."""
_STEPS: Final = [0] * 256
for _opening, _closing in (b"[]", b"{}"):
    _STEPS[_opening], _STEPS[_closing] = 1, -1
_PASSED: Final = bytes(byte for byte in range(256) if byte not in b'[]{}"')
_FIELDS: Final = msgspec.json.Decoder(dict[str, Any])


async def json_body(exchange: Exchange, limit: int) -> bytes:
    """Read a body that says it is JSON.

    Raises:
        ApiError: 415, 413 or 408.
        ClientGoneError: the client closed the connection.
    """
    kind = (exchange.header(b"content-type") or b"application/json").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise ApiError(415, "Send the body as JSON, with the header Content-Type: application/json.")
    return await bounded_body(exchange, limit)


async def bounded_body(exchange: Exchange, limit: int) -> bytes:
    """Read a body of any type.

    Raises:
        ApiError: 413 or 408.
        ClientGoneError: the client closed the connection.
    """
    try:
        return await exchange.body(limit)
    except BodyTooLargeError as e:
        raise ApiError(413, f"The body is longer than {e.limit} bytes: send less.") from e
    except BodyLateError as e:
        raise ApiError(408, "The body didn't arrive in time: send it at once.") from e


def decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Decode a body.

    Raises:
        ApiError: 400, with the field that is wrong.
    """
    if is_deep(body):
        raise ApiError(400, f"The body is nested more than {MOST_DEEP} deep.")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as e:
        raise from_validation(e) from e
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise ApiError(400, f"The body is not JSON: {e}") from e


def is_deep(body: bytes) -> bool:
    r"""Return whether a JSON text is nested more than `MOST_DEEP` deep.

    Example:
        >>> is_deep(b"[" * 100 + b"]" * 100), is_deep(b"[" * 101), is_deep(b'["' + b'[' * 500 + b'\\"{"]')
        (False, True, False)
    """
    if body.count(b"[") + body.count(b"{") <= MOST_DEEP:
        return False
    marks = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _PASSED)
    marks = marks.replace(b'""', b"")  # empty by now; where one text ends and the next begins, the two become one
    marks = b"".join(marks.split(b'"')[::2])  # what stands outside of texts
    marks = marks.replace(b"[]", b"").replace(b"{}", b"")
    return any(depth > MOST_DEEP - 1 for depth in accumulate(map(_STEPS.__getitem__, marks)))


def fields_of(body: bytes) -> dict[str, Any]:
    """Return all fields of a body, those that the API doesn't know included.

    Raises:
        ApiError: 400, the body is no JSON object, or a field that the API doesn't know holds what can't be read.
    """
    return decoded(_FIELDS, body)
