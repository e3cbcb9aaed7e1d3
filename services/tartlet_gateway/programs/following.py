"""A program's events as server-sent events, whose ids are offsets: a client goes on behind the last one it read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Final, TypeVar

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
from tartlet_gateway.runs.pacing import paced

T = TypeVar("T")
FOUND_S: Final = 30.0
"""The status waits this long for a program to be found, so that an unknown program is answered with its own status."""
MAX_OFFSET: Final = (1 << 63) - 1
_DIGITS: Final = 20


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
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS) or int(text) >= MAX_OFFSET:
        name = "offset" if last is None else "Last-Event-ID"
        raise ApiError(400, f"{name}: the number of an event.", param=name)
    return int(text) + (last is not None)


async def follow(exchange: Exchange, run: tartlet.Run, opening: bytes = b"") -> None:
    """Write a program's events to its end, behind `opening`.

    Raises:
        TartletError: the program can't be followed, and nothing was written yet.
    """

    def of(event: tartlet.Event) -> dict[str, Any]:
        if isinstance(event, tartlet.Ended):
            caller_of(exchange.scope).saw_end(event)
        return event_value(event)

    try:
        if opening:
            await _write(exchange, opening)
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FOUND_S):
                    await run.found()
            await exchange.start(200, sse.HEADERS)
        await _write_all(exchange, run, of, run.program_id)
    finally:
        run.cancel()


async def follow_calls(exchange: Exchange, told: AsyncGenerator[dict[str, Any], None], program_id: str) -> None:
    """Write a program's calls to its end: events `trace`, then `calls`.

    Raises:
        TartletError: the calls can't be followed, and nothing was written yet.
    """

    def of(value: dict[str, Any]) -> dict[str, Any]:
        return {"type": "calls" if "calls" in value else "trace", "program_id": program_id, **value}

    async with aclosing(told):
        await _write_all(exchange, told, of, program_id)


async def _write_all(
    exchange: Exchange, source: AsyncIterator[T], form: Callable[[T], dict[str, Any]], program_id: str
) -> None:
    """Write an event for each item of a source, a comment while none comes, and the error in which the source ends."""
    try:
        async with aclosing(paced(source, lambda: COMMENT_S if exchange.started else FOUND_S)) as items:
            async for item in items:
                await _write(exchange, sse.COMMENT if item is None else encoded(form(item)))
    except TartletError as e:
        if not exchange.started:
            raise
        error = TypedError(e)
        exchange.fail(error.status)
        await exchange.write(encoded({"type": "error", "program_id": program_id, **error.body}))
    await exchange.write(b"", more=False)


async def _write(exchange: Exchange, data: bytes) -> None:
    if not exchange.started:
        await exchange.start(200, sse.HEADERS)
    await exchange.write(data)
