"""Requests over HTTP/1.1 connections that stay open: the operator's own requests to the API server.

There is one for each object, and little else to be done about it: aiohttp takes 0.1 ms for a request, 0.7 ms after a
rest, five times as long as this. kopf's lists and watches go through aiohttp.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import sys
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

_TIMEOUT_S: Final = 30.0
_TARGET: Final = re.compile(r"/[!-~]*")


class Gone(ConnectionError):
    """The server closed the connection before it answered."""


class TooLarge(Exception):
    """A reply has more bytes than were asked for."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply."""

    status: int
    body: bytes


@dataclass(slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    used: bool = False

    def end(self) -> None:
        """Close it, at once."""
        self.writer.transport.abort()

    async def exchange(self, request: bytes, most: int) -> tuple[Reply, bool]:
        """The reply, and whether the connection may be used again."""
        self.used = True
        try:
            self.writer.write(request)
            await self.writer.drain()
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError) as e:
            raise Gone(repr(e)) from e
        try:
            fields = _fields(head)
            reply = Reply(int(head[9:12]), await self._body(fields, most))
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as e:
            raise ConnectionError(f"a reply that can't be read: {e!r}") from e
        return reply, fields.get(b"connection", b"").lower() != b"close"

    async def _body(self, fields: dict[bytes, bytes], most: int) -> bytes:
        if b"content-length" in fields:
            return await self.reader.readexactly(_within(int(fields[b"content-length"]), most))
        if fields.get(b"transfer-encoding", b"").lower() != b"chunked":
            return b""  # as of 204
        chunks, total = [], 0
        while size := int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16):
            total = _within(total + size, most)
            chunks.append(await self.reader.readexactly(size))
            await self.reader.readexactly(2)
        await self.reader.readuntil(b"\r\n")  # no trailers: none were asked for
        return b"".join(chunks)


class Connections:
    """At most `limit` connections to one server, made when they are needed."""

    def __init__(self, url: str, tls: ssl.SSLContext, limit: int) -> None:
        parts = urlsplit(url)
        self._tls = tls if parts.scheme == "https" else None
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._tls is not None else 80)
        self._prefix = parts.path.rstrip("/")
        self._common = f"Host: {parts.netloc}\r\nUser-Agent: tartlet-operator\r\n"
        self._idle: list[_Connection] = []
        self._room = asyncio.Semaphore(limit)

    async def request(self, method: str, target: str, headers: str, body: bytes, most: int = sys.maxsize) -> Reply:
        """Send a request that may be sent twice, and read its reply.

        Args:
            method: such as GET.
            target: path and query, quoted.
            headers: each ended by CRLF.
            body: empty: none.
            most: bytes that the reply's body may have.

        Raises:
            OSError: the server can't be reached, or didn't answer in time.
            TooLarge: the reply has more; it was left.
            ValueError: the target isn't quoted: what follows it would be read as another request.
        """
        if not _TARGET.fullmatch(target):
            raise ValueError(f"{target[:200]!r} is no target of a request")
        head = f"{method} {self._prefix}{target} HTTP/1.1\r\n{self._common}{headers}Content-Length: {len(body)}\r\n\r\n"
        async with self._room, asyncio.timeout(_TIMEOUT_S):
            while True:
                connection = self._waiting() or await self._connect()
                waited = connection.used
                try:
                    reply, stays = await connection.exchange(head.encode() + body, most)
                except BaseException as e:
                    connection.end()
                    if waited and isinstance(e, Gone):  # while nobody used it
                        continue
                    raise
                if stays:
                    self._idle.append(connection)
                else:
                    connection.end()
                return reply

    async def close(self) -> None:
        """Close what is idle."""
        while self._idle:
            self._idle.pop().end()
        await asyncio.sleep(0)  # in which the loop closes them

    def _waiting(self) -> _Connection | None:
        """The idle connection that was used last."""
        while self._idle:
            connection = self._idle.pop()
            unasked = connection.reader._buffer  # type: ignore[attr-defined]  # noqa: SLF001 - nothing else tells
            if not (unasked or connection.reader.at_eof() or connection.writer.is_closing()):
                return connection
            connection.end()
        return None

    async def _connect(self) -> _Connection:
        return _Connection(*await asyncio.open_connection(self._host, self._port, ssl=self._tls))


def _within(size: int, most: int) -> int:
    if size > most:
        raise TooLarge(f"{size} bytes")
    return size


def _fields(head: bytes) -> dict[bytes, bytes]:
    """A reply's fields, names in lower case."""
    lines = head.split(b"\r\n")[1:-2]
    return {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
