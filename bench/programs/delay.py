"""A proxy between two Unix sockets that hands on what it gets some time later, as a network with a round trip does."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

_CHUNK_BYTES = 1 << 16


async def _hand_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Write what is read, each chunk `delay_s` after it came; further chunks may be on their way meanwhile."""
    loop = asyncio.get_running_loop()
    waiting: deque[tuple[float, bytes]] = deque()
    arrived = asyncio.Event()

    async def send() -> None:
        while True:
            while not waiting:
                arrived.clear()
                await arrived.wait()
            due_s, data = waiting.popleft()
            if (left_s := due_s - loop.time()) > 0:
                await asyncio.sleep(left_s)
            if not data:
                if writer.can_write_eof():
                    writer.write_eof()
                return
            writer.write(data)
            await writer.drain()

    with suppress(ConnectionError):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send())
            data = b"-"
            while data:
                data = await reader.read(_CHUNK_BYTES)
                waiting.append((loop.time() + delay_s, data))
                arrived.set()


@asynccontextmanager
async def delaying(at: Path, to: Path, round_trip_s: float) -> AsyncIterator[str]:
    """Listen at a Unix socket and connect each client with another one; yields the address for clients.

    Half of the round trip passes in each direction.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # asyncio cancels this task when the benchmark ends, and would report that as an error
        with suppress(ConnectionError, ExceptionGroup, asyncio.CancelledError):
            far_reader, far_writer = await asyncio.open_unix_connection(str(to))
            try:
                await asyncio.gather(
                    _hand_on(reader, far_writer, round_trip_s / 2), _hand_on(far_reader, writer, round_trip_s / 2)
                )
            finally:
                far_writer.close()
                writer.close()

    server = await asyncio.start_unix_server(serve, str(at))
    try:
        yield f"unix:{at}"
    finally:
        server.close()
