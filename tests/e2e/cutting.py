"""A proxy in front of control that breaks connections, on Unix sockets and TCP, and programs that must not notice."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import tartlet
from tests.e2e.serving import SAMPLERS, Serving, program, serving, until_nothing_is_held

_CHUNK_BYTES = 1 << 16


class Cutter:
    """Passes bytes between whoever connects and one address, until it is told to cut, to refuse or to swallow."""

    def __init__(self, dial: Callable[[], Any]) -> None:
        """`dial` connects to the server and returns a reader and a writer."""
        self._dial = dial
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.refuses = False
        self._deaf: set[asyncio.StreamWriter] = set()
        self.passed = 0
        """Bytes that were passed on."""
        self.cuts = 0
        """Connections that were cut."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.refuses:
            writer.transport.abort()
            return
        try:
            there, here = await self._dial()
        except OSError:
            writer.transport.abort()
            return
        mine = {writer, here}
        self._writers |= mine
        try:
            await asyncio.gather(self._pass(reader, here), self._pass(there, writer))
        finally:
            self._writers -= mine
            self._deaf -= mine
            for end in mine:
                end.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                if writer in self._deaf:
                    continue
                self.passed += len(data)
                writer.write(data)
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()

    def cut(self) -> None:
        """Cut all connections, without a farewell on TCP."""
        self.cuts += len(self._writers) // 2
        for writer in list(self._writers):
            writer.transport.abort()

    def deafen(self) -> None:
        """Let the bytes of all connections vanish from now on, though the connections stay open."""
        self._deaf |= self._writers

    async def close(self) -> None:
        """End all connections."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Proxy:
    """The cutters in front of one control: one for its own socket, and one for the frames' socket beside it."""

    def __init__(self) -> None:
        self.cutters: list[Cutter] = []
        self._servers: list[asyncio.Server] = []

    async def beside(self, socket: Path, path: Path) -> str:
        """Stand at `path` before the Unix socket `socket`, and beside both. Returns the address."""
        for suffix in ("", ".frames"):
            there = Path(f"{socket}{suffix}")
            cutter = Cutter(functools.partial(asyncio.open_unix_connection, str(there)))
            self._servers.append(await asyncio.start_unix_server(cutter.serve, f"{path}{suffix}"))
            self.cutters.append(cutter)
        return f"unix:{path}"

    async def before(self, address: str) -> str:
        """Stand before a TCP address. Returns an address on localhost."""
        host, _, port = address.rpartition(":")
        cutter = Cutter(functools.partial(asyncio.open_connection, host, int(port)))
        server = await asyncio.start_server(cutter.serve, "localhost", 0)
        self._servers.append(server)
        self.cutters.append(cutter)
        return f"localhost:{server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Cut all connections."""
        for cutter in self.cutters:
            cutter.cut()

    @property
    def cuts(self) -> int:
        """Connections that were cut until now."""
        return sum(cutter.cuts for cutter in self.cutters)

    @contextlib.asynccontextmanager
    async def cutting(self, every_s: float) -> AsyncIterator[None]:
        """Cut all connections again and again during the block, one kind of socket after the other."""

        async def cut() -> None:
            while True:
                for cutter in self.cutters:
                    await asyncio.sleep(every_s)
                    cutter.cut()

        task = asyncio.ensure_future(cut())
        try:
            yield
        finally:
            task.cancel()

    def deafen(self) -> None:
        """Let the bytes of all connections vanish from now on."""
        for cutter in self.cutters:
            cutter.deafen()

    @contextlib.asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """Cut all connections, and refuse others during the block."""
        for cutter in self.cutters:
            cutter.refuses = True
        self.cut()
        try:
            yield
        finally:
            for cutter in self.cutters:
                cutter.refuses = False

    async def close(self) -> None:
        """Stop listening, and end all connections."""
        for server in self._servers:
            server.close()
        for cutter in self.cutters:
            await cutter.close()


@contextlib.asynccontextmanager
async def proxy() -> AsyncIterator[Proxy]:
    """Yield a proxy without cutters."""
    made = Proxy()
    try:
        yield made
    finally:
        await made.close()


STEP_S = "0.003"


class Outcome:
    """What a program sent and returned, and what control counted of it."""

    def __init__(self, ended: Any, sent: bytes) -> None:
        assert ended.success, ended.error
        usage = ended.usage
        self.values = (ended.result, sent, usage.commands, usage.sampled_tokens, usage.input_tokens)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Outcome) and other.values == self.values

    def __repr__(self) -> str:
        return repr(self.values)

    __hash__ = None  # type: ignore[assignment]


async def run(client: tartlet.AsyncClient, sampler: Any) -> Outcome:
    spec = tartlet.LaunchSpec(source=program("sampled"), args=[str(a) for a in sampler])
    running = await client.run(spec=spec)
    sent = b""
    async for event in running:
        if isinstance(event, tartlet.Message):
            sent += event.data
    return Outcome(running.ended, sent)


async def round_of(client: tartlet.AsyncClient) -> list[Outcome]:
    return list(await asyncio.gather(*(run(client, sampler) for sampler in SAMPLERS)))


async def nothing_is_lost_while_cut(client: tartlet.AsyncClient, made: Proxy, every_s: float, for_s: float) -> int:
    """Run rounds of programs while every connection is cut. Returns how many connections were cut."""
    undisturbed = await round_of(client)
    before, end = made.cuts, time.monotonic() + for_s
    async with made.cutting(every_s):
        while time.monotonic() < end:
            assert await round_of(client) == undisturbed
    while not (await client.state()).control:  # noqa: ASYNC110 - the last cut may have come last
        await asyncio.sleep(0.02)
    await until_nothing_is_held(client)
    return made.cuts - before


@contextlib.asynccontextmanager
async def on_one_machine(
    run_dir: Path, *, roles: Sequence[str] = ("runtime", "worker"), grace_s: float = 20.0
) -> AsyncIterator[tuple[Serving, Proxy, tartlet.AsyncClient]]:
    """A server of which some roles reach control through a proxy on Unix sockets."""
    async with proxy() as made:
        address = await made.beside(run_dir / "control.sock", run_dir / "p.sock")
        env = {f"TARTLET_{role.upper()}_CONTROL": address for role in roles}
        env |= {f"TARTLET_CONTROL_{role.upper()}_GRACE_S": str(grace_s) for role in ("runtime", "engine")}
        env["TARTLET_CONTROL_REBUILD_GRACE_S"] = str(grace_s)
        started = serving(run_dir, TARTLET_WORKER_FAKE_STEP_S=STEP_S, **env)
        server = await asyncio.to_thread(started.__enter__)
        try:
            async with tartlet.AsyncClient(server.address) as client:
                yield server, made, client
        finally:
            await asyncio.to_thread(started.__exit__, None, None, None)
