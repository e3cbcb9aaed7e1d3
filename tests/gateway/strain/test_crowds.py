"""A gateway has a bounded number of connections open, whoever opens them, and tells further clients so."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tartlet_gateway.http import protocol
from tartlet_gateway.http.exchange import Exchange
from tartlet_gateway.http.server import Bounds, bind, serve

MOST = 3
SPARE = 2
REQUEST = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"
CLOSING = REQUEST.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
HANDSHAKE = (
    b"GET /v1/live HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No deadline of a client's passes during a test."""
    monkeypatch.setattr(protocol, "HEADERS_S", 1000.0)
    monkeypatch.setattr(protocol, "SPARE", SPARE)


async def app(scope: Any, receive: Any, send: Any) -> None:
    await Exchange(scope, receive, send).reply(200, b"here", [])


@asynccontextmanager
async def crowded() -> AsyncIterator[tuple[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
    """A server that is full: its port, and one of its connections."""
    listener = bind("127.0.0.1:0")
    port = listener.getsockname()[1]
    ready = asyncio.Event()
    serving = asyncio.ensure_future(serve(app, listener, ready.set, lambda: None, Bounds(1024, MOST)))
    await ready.wait()
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MOST)]
    try:
        for reader, writer in opened:  # one that has an answer is counted
            writer.write(REQUEST)
            await reader.readuntil(b"here")
        yield port, opened[0]
    finally:
        for _, writer in opened:
            writer.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def answered(port: int, request: bytes) -> bytes:
    """Return what the server says until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await reader.read()
    finally:
        writer.close()


def assert_is_refusal(answer: bytes) -> None:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nretry-after: 1\r\n" in head
    error = json.loads(body)["error"]
    assert (error["type"], error["code"]) == ("service_unavailable_error", "too_many_connections")


@pytest.mark.parametrize("request_", [REQUEST, HANDSHAKE, REQUEST * 2], ids=["request", "websocket", "pipelined"])
async def test_a_connection_beyond_the_bound_is_told_so(request_: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with crowded() as (port, _):
        for _ in range(3):
            assert_is_refusal(await answered(port, request_))
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING and r.name == "tartlet.gateway"]
    assert len(warnings) == 1


async def test_a_connection_that_ends_makes_room() -> None:
    async with crowded() as (port, (reader, writer)):
        assert_is_refusal(await answered(port, CLOSING))
        writer.write(CLOSING)
        assert (await reader.read()).endswith(b"here")  # the server has closed the connection
        assert (await answered(port, CLOSING)).endswith(b"here")


async def test_silent_connections_beyond_the_bound_are_few() -> None:
    async with crowded() as (port, _):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(SPARE)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert_is_refusal(await reader.read())
        for each in (writer, *(writer for _, writer in silent)):
            each.close()
