"""A redis-server for a benchmark, which writes its append-only file before each answer."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import redis

START_S = 10.0


class RedisServer:
    """The machine's redis-server on a Unix socket in a directory of its own, which a death doesn't empty."""

    def __init__(self, *options: str) -> None:
        """Find the program; `options` are more flags.

        Raises:
            RuntimeError: there is none.
        """
        program = shutil.which("redis-server")
        if program is None:
            raise RuntimeError("there is no redis-server: apt-get install redis-server")
        self._program = program
        self._options = options
        self._directory = Path(tempfile.mkdtemp(prefix="tt-"))
        self._socket = self._directory / "redis.sock"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"unix://{self._socket}"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def start(self) -> None:
        """Start it, on what it left on the disk.

        Raises:
            RuntimeError: it doesn't start.
        """
        flags = ["--port", "0", "--unixsocket", str(self._socket), "--dir", str(self._directory), "--save", ""]
        flags += ["--logfile", "redis.log", "--appendonly", "yes", "--appendfsync", "always"]
        command = [self._program, *flags, "--maxmemory-policy", "noeviction", *self._options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _wait(self._socket, self._process)

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def redis_server(*options: str) -> Iterator[str]:
    """Start a redis-server, with more flags; yields its URL.

    Raises:
        RuntimeError: there is none, or it doesn't start.
    """
    with RedisServer(*options) as server:
        yield server.url


def _wait(socket: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        if socket.exists():
            try:
                redis.Redis(unix_socket_path=str(socket)).ping()
            except redis.RedisError:
                pass
            else:
                return
        time.sleep(0.02)
    raise RuntimeError(f"redis-server didn't start: {socket.with_name('redis.log')} says why")
