"""A small HTTP client for load: requests as bytes, replies as the times at which they began and ended.

A client library's own time a request would be more than what the gateway adds.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

_END: Final = b"\r\n0\r\n\r\n"
_FIRST: Final = re.compile(rb'"content":"[^"]')
"""The first event with text; the event before it names the role."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds from a request to the first event of its reply, and to the reply's end."""

    first_s: float
    total_s: float


def request(method: str, path: str, port: int, body: object | None = None) -> bytes:
    """Return a request in bytes; the body is sent as JSON."""
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-length: {len(data)}\r\n"
    return head.encode() + b"content-type: application/json\r\n\r\n" + data


class Connections:
    """Connections to one port of this machine, used again."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def streamed(self, data: bytes) -> Timing:
        """Send a request whose reply is a stream of server-sent events, and read it to its end.

        Raises:
            RuntimeError: the reply's status isn't 200.
        """
        reader, writer = await self.open()
        begun = time.perf_counter()
        writer.write(data)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(head.decode() + (await reader.read(500)).decode())
        seen, first_s = b"", 0.0
        while not (b"\r\n" + seen).endswith(_END):
            part = await reader.read(1 << 16)
            if not part:
                raise RuntimeError("the connection ended within a reply")
            seen = seen[-256:] + part
            if not first_s and _FIRST.search(seen):
                first_s = time.perf_counter() - begun
        self._idle.append((reader, writer))
        return Timing(first_s, time.perf_counter() - begun)

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return an idle connection that the server hasn't closed, or a new one."""
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof():
                return reader, writer
            writer.close()
        return await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 22)

    def close(self) -> None:
        """Close the idle connections."""
        for _, writer in self._idle:
            writer.close()


@asynccontextmanager
async def connections(port: int) -> AsyncIterator[Connections]:
    """Make connections to a port, and close them."""
    made = Connections(port)
    try:
        yield made
    finally:
        made.close()


async def until_served(port: int) -> None:
    """Wait until a server listens."""
    async with asyncio.timeout(30):
        while True:
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.02)
