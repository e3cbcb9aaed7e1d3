"""A Redis of its own for a test, and a proxy before it that can delay or stop what passes."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import trustme

from tests.lacking import lacking

START_S = 20.0


class RedisServer:
    """Debian's redis-server on a free port of the loopback, with an append-only file in `directory`."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory = directory
        self.options = options
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, on what it left on the disk."""
        flags = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory), "--save", ""]
        flags += ["--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction"]
        with (self.directory / "redis.log").open("ab") as log:
            self.process = subprocess.Popen(["redis-server", *flags, *self.options], stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert self.process.poll() is None, (self.directory / "redis.log").read_text()
            assert time.monotonic() < deadline, "redis-server doesn't answer"
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.sendall(b"PING\r\n")
                answer = connection.recv(64)
                return bool(answer) and not answer.startswith(b"-LOADING")
        except OSError:
            return False

    def command(self, *words: str) -> str:
        """Give it a command, and return the answer."""
        ask = ["redis-cli", "-p", str(self.port), *words]
        return subprocess.run(ask, capture_output=True, text=True, timeout=10, check=True).stdout

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None


@contextlib.contextmanager
def redis_server(directory: Path, *options: str) -> Iterator[RedisServer]:
    """A running Redis, until the block ends."""
    if shutil.which("redis-server") is None:
        lacking("redis-server (apt-get install redis-server)")
    directory.mkdir(exist_ok=True, parents=True)
    server = RedisServer(directory, *options)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@contextlib.contextmanager
def redis_over_tls(directory: Path, *options: str) -> Iterator[tuple[int, Path]]:
    """A running Redis with a port for TLS; yields this port, and its authority's certificate."""
    directory.mkdir(exist_ok=True, parents=True)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    leaf = authority.issue_cert("localhost", "127.0.0.1")
    leaf.private_key_pem.write_to_path(directory / "key.pem")
    leaf.cert_chain_pems[0].write_to_path(directory / "cert.pem")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    flags = ["--tls-port", str(port), "--tls-auth-clients", "no"]
    for name, option in (("ca", "ca-cert"), ("cert", "cert"), ("key", "key")):
        flags += [f"--tls-{option}-file", str(directory / f"{name}.pem")]
    with redis_server(directory, *flags, *options):
        yield port, directory / "ca.pem"


class SlowProxy:
    """Passes bytes between clients and a port. Answers wait for `delay_s`, and for `open`."""

    def __init__(self, port: int) -> None:
        self.to = port
        self.port = 0
        self.delay_s = 0.0
        self.open = asyncio.Event()
        self.open.set()
        self.asked = 0
        """Bytes that clients have sent."""

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", self.to)
        except OSError:
            writer.close()
            return
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._ask(reader, upstream))
                tasks.create_task(self._answer(upstream_reader, writer))
        except* (OSError, EOFError):
            pass
        finally:
            writer.close()
            upstream.close()

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            self.asked += len(data)
            writer.write(data)
            await writer.drain()
        raise EOFError

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            await asyncio.sleep(self.delay_s)
            await self.open.wait()
            writer.write(data)
            await writer.drain()
        raise EOFError


@contextlib.asynccontextmanager
async def slow_proxy(port: int) -> AsyncIterator[SlowProxy]:
    """A proxy before a port, until the block ends."""
    proxy = SlowProxy(port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
