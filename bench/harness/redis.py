"""A redis-server for a benchmark, which writes its append-only file before each answer."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

START_S = 10.0


@contextmanager
def redis_server() -> Iterator[str]:
    """Start the machine's redis-server on a Unix socket in a directory of its own; yields its URL.

    Raises:
        RuntimeError: there is none, or it doesn't start.
    """
    program = shutil.which("redis-server")
    if program is None:
        raise RuntimeError("there is no redis-server: apt-get install redis-server")
    directory = tempfile.mkdtemp(prefix="tt-")
    socket = f"{directory}/redis.sock"
    flags = ["--port", "0", "--unixsocket", socket, "--dir", directory, "--save", "", "--logfile", "redis.log"]
    flags += ["--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction"]
    process = subprocess.Popen([program, *flags], stdout=subprocess.DEVNULL)
    try:
        _wait(socket, process)
        yield f"unix://{socket}"
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def _wait(socket: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        if Path(socket).exists():
            try:
                redis.Redis(unix_socket_path=socket).ping()
            except redis.RedisError:
                pass
            else:
                return
        time.sleep(0.02)
    raise RuntimeError(f"redis-server didn't start: {Path(socket).with_name('redis.log')} says why")
