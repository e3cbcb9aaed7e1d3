"""A small HTTP server for tests, which counts connections and notes what it is asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field


@dataclass
class Heard:
    """One request."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Server:
    """What a test sees of its server."""

    port: int = 0
    connections: int = 0
    heard: list[Heard] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)  # targets whose connections the client has closed early
    go_on: asyncio.Event = field(default_factory=asyncio.Event)  # for what waits in the middle of a body

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


Answer = Callable[[Server, Heard, asyncio.StreamWriter], Awaitable[None]]


def reply(body: bytes = b"", status: str = "200 OK", **headers: str) -> bytes:
    """A whole reply; `_` in a header's name stands for a hyphen."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def answer(server: Server, heard: Heard, writer: asyncio.StreamWriter) -> None:
    """Answer as the path says."""
    path, _, query = heard.target.partition("?")
    if path.startswith("/redirect"):
        writer.write(reply(status=f"{path[9:] or 302} Elsewhere", Location=query))
    elif path == "/bytes":
        writer.write(reply(bytes(i % 251 for i in range(int(query))), Content_Type="application/octet-stream"))
    elif path == "/slowly":  # as many chunks as the query says, the first at once, each other one when the test says so
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nETag: v1\r\n\r\n")
        for i in range(int(query)):
            chunk = f"data: {i}\n".encode()
            writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            await writer.drain()
            await server.go_on.wait()
        writer.write(b"0\r\n\r\n")
    elif path == "/waiting":  # the body comes when the test says so; with "other", each reply has an ETag of its own
        tag = len(server.heard) if query == "other" else 0
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: v%d\r\n\r\n" % tag)
        await writer.drain()
        await server.go_on.wait()
        writer.write(b"body.")
    elif path == "/silent":
        await server.go_on.wait()
        writer.write(reply(b"at last"))
    elif path == "/endless":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        while True:
            writer.write(bytes(1 << 16))
            await writer.drain()
    elif path == "/broken":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
    elif path == "/headers":
        writer.write(
            b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"v" * 4000) for i in range(100)) + b"\r\n"
        )
    elif path == "/garbage":
        writer.write(b"\x00\x01\x02 no HTTP\r\n\r\n")
    else:
        lines = [f"{heard.method} {heard.target}", *(f"{n}: {v}" for n, v in heard.headers.items()), ""]
        writer.write(reply("\n".join(lines).encode() + heard.body, Content_Type="text/plain"))


@contextlib.asynccontextmanager
async def serving(answered: Answer = answer, host: str = "127.0.0.1") -> AsyncIterator[Server]:
    """A server on a port of its own, until the block ends."""
    server = Server()
    writers: set[asyncio.StreamWriter] = set()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        server.connections += 1
        writers.add(writer)
        target = "?"
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, target, _ = head[0].split(" ")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            heard = Heard(method, target, headers, body)
            server.heard.append(heard)
            answering = asyncio.ensure_future(answered(server, heard, writer))
            leaving = asyncio.ensure_future(reader.read(1))
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                server.closed.append(target)
                answering.cancel()
            leaving.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            server.closed.append(target)
        finally:
            writer.close()
            writers.discard(writer)
            tasks.discard(task)

    listener = await asyncio.start_server(serve, host, 0)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
