"""A program's events as server-sent events, whose ids are offsets: a client goes on behind the last one it read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec

import tartlet
from tartlet_common.errors.registry import TartletError
from tartlet_gateway.http.exchange import Exchange
from tartlet_gateway.openai import sse
from tartlet_gateway.openai.completions import COMMENT_S
from tartlet_gateway.openai.errors import ApiError
from tartlet_gateway.programs.errors import TypedError
from tartlet_gateway.programs.values import event_value
from tartlet_gateway.runs.caller import caller_of

QUIET_S: Final = 1.0
"""The status waits this long for the first event, so that an unknown program is answered with its own status."""
MAX_OFFSET: Final = (1 << 63) - 1


def encoded(value: dict[str, Any]) -> bytes:
    r"""Return one event; those with an offset carry it as their id.

    Example:
        >>> encoded({"type": "message", "offset": 3, "text": "hi"})
        b'id: 3\nevent: message\ndata: {"type":"message","offset":3,"text":"hi"}\n\n'
    """
    number = b"id: %d\n" % value["offset"] if "offset" in value else b""
    return number + b"event: %s\ndata: %s\n\n" % (value["type"].encode(), msgspec.json.encode(value))


def offset_of(last: bytes | None, asked: str) -> int:
    """Return from which event on a client reads: the one behind its last one, else the one it asks for.

    Args:
        last: the header Last-Event-ID.
        asked: the query parameter `offset`, "" for none.

    Raises:
        ApiError: 400, it is no offset.

    Example:
        >>> offset_of(b"41", "3"), offset_of(None, "3"), offset_of(None, "")
        (42, 3, 0)
    """
    text = asked if last is None else last.decode("latin-1")
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()) or int(text[:20]) >= MAX_OFFSET:
        name = "offset" if last is None else "Last-Event-ID"
        raise ApiError(400, f"{name}: the number of an event.", param=name)
    return int(text) + (last is not None)


async def follow(exchange: Exchange, run: tartlet.Run, opening: bytes = b"") -> None:
    """Write a program's events to its end, behind `opening`.

    Raises:
        TartletError: the program can't be followed, and nothing was written yet.
    """
    try:
        if opening:
            await _write(exchange, opening)
        while (event := await _next(exchange, run)) is not None:
            if isinstance(event, tartlet.Ended):
                caller_of(exchange.scope).saw_end(event)
            await _write(exchange, encoded(event_value(event)))
    except TartletError as e:
        if not exchange.started:
            raise
        await exchange.write(encoded({"type": "error", **TypedError(e).body}))
    finally:
        run.cancel()
    await exchange.write(b"", more=False)


async def follow_calls(exchange: Exchange, told: AsyncGenerator[dict[str, Any], None]) -> None:
    """Write a program's calls to its end: events `trace`, then `calls`.

    Raises:
        TartletError: the calls can't be followed, and nothing was written yet.
    """
    asked: asyncio.Future[dict[str, Any] | None] | None = None
    try:
        while True:
            asked = asked or asyncio.ensure_future(anext(told, None))
            done, _ = await asyncio.wait([asked], timeout=COMMENT_S if exchange.started else QUIET_S)
            if not done:  # the generator would end if it were cancelled
                await _write(exchange, sse.COMMENT)
                continue
            value, asked = asked.result(), None
            if value is None:
                break
            await _write(exchange, encoded({"type": "calls" if "calls" in value else "trace", **value}))
    except TartletError as e:
        if not exchange.started:
            raise
        await exchange.write(encoded({"type": "error", **TypedError(e).body}))
    finally:
        if asked is not None:
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        await told.aclose()
    await exchange.write(b"", more=False)


async def _next(exchange: Exchange, run: tartlet.Run) -> tartlet.Event | None:
    while True:
        try:
            async with asyncio.timeout(COMMENT_S if exchange.started else QUIET_S):
                return await anext(run, None)
        except TimeoutError:
            await _write(exchange, sse.COMMENT)


async def _write(exchange: Exchange, data: bytes) -> None:
    if not exchange.started:
        await exchange.start(200, sse.HEADERS)
    await exchange.write(data)
