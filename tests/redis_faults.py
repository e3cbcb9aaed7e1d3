"""Faults of a test's Redis, each of which ends with its block: it is killed, emptied, stopped, or answers late."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Final

import redis

from tests.redis_server import RedisServer, SlowProxy, redis_server, slow_proxy

FAULTS: Final = ("killed", "flushed", "stopped", "slow", "late")
ANSWER_S: Final = 1.0
"""For how long control waits for an answer of its directory."""
BOUND_S: Final = 10.0
"""Nothing here waits longer, so that no test hangs because an earlier one has failed."""


class BreakableRedis:
    """A Redis whose clients reach it through a proxy. They wait for a slow one, and take a late one for lost."""

    def __init__(self, server: RedisServer, proxy: SlowProxy, answer_s: float = ANSWER_S) -> None:
        """`answer_s`: for how long its clients wait for an answer, in seconds."""
        self.server = server
        self.url = proxy.url
        self._proxy = proxy
        self._delays_s = {"slow": answer_s / 4, "late": 3 * answer_s}

    def break_by(self, fault: str) -> None:
        """Let one of `FAULTS` happen. It lasts until `mend`, except that a Redis which was emptied goes on at once."""
        match fault:
            case "killed":
                self.server.kill()
            case "flushed":
                with redis.Redis.from_url(self.server.url, socket_timeout=BOUND_S) as client:
                    client.flushall()
            case "stopped":
                self._send(signal.SIGSTOP)
            case _:
                self._proxy.delay_s = self._delays_s[fault]

    def mend(self) -> None:
        """End whatever fault there is."""
        self._proxy.delay_s = 0.0
        if self.server.process is None:
            self.server.start()
        else:
            self._send(signal.SIGCONT)

    @contextlib.contextmanager
    def mended(self) -> Iterator[None]:
        """Let no fault outlive the block."""
        try:
            yield
        finally:
            self.mend()

    def _send(self, number: signal.Signals) -> None:
        assert self.server.process is not None
        self.server.process.send_signal(number)


@contextlib.contextmanager
def breakable_redis(directory: Path) -> Iterator[BreakableRedis]:
    """A Redis without a disk for the processes of a test. Its proxy runs in a thread."""
    with redis_server(directory, "--appendonly", "no") as server, _proxy_in_thread(server.port) as proxy:
        yield BreakableRedis(server, proxy)


@contextlib.contextmanager
def _proxy_in_thread(port: int) -> Iterator[SlowProxy]:
    begun: Future[tuple[SlowProxy, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        over = asyncio.Event()
        async with slow_proxy(port) as proxy:
            begun.set_result((proxy, asyncio.get_running_loop(), over))
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="proxy", daemon=True)
    thread.start()
    proxy, loop, over = begun.result(BOUND_S)
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(BOUND_S)
