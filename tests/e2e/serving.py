"""Runs `tartlet serve` for tests, with the fake engine unless another is named, and checks that no process stays."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

import tartlet

PROGRAMS = Path(__file__).parent / "programs"
START_S = 60.0


def program(name: str) -> tartlet.Source:
    """Returns a program of tests/e2e/programs."""
    return tartlet.Source.from_file(PROGRAMS / f"{name}.py")


def environment(run_dir: Path, **more: str) -> dict[str, str]:
    """Returns this process's environment with the test's run directory."""
    return {**os.environ, "TARTLET_RUN_DIR": str(run_dir), **more}


def command(*args: str) -> list[str]:
    """Returns a `tartlet` command line."""
    return [sys.executable, "-m", "tartlet_cli", *args]


def tartlet_cli(run_dir: Path, *args: str, timeout_s: float = 60, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return subprocess.run(
        command(*args), env=environment(run_dir, **env), capture_output=True, text=True, timeout=timeout_s, check=False
    )


def out(run_dir: Path, *args: str, **env: Any) -> str:
    """Returns the standard output of a command that must succeed."""
    result = tartlet_cli(run_dir, *args, **env)
    assert result.returncode == 0, result.stderr
    return result.stdout


def roles_in(run_dir: Path) -> list[psutil.Process]:
    """Returns every process whose environment names a run directory at or below `run_dir`."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("TARTLET_RUN_DIR", "").startswith(
                str(run_dir)
            ):
                found.append(process)
    return found


def wait_until_none(run_dir: Path, timeout_s: float = 15.0) -> list[psutil.Process]:
    """Waits until no process of `run_dir` is left, and returns those left after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while (left := roles_in(run_dir)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


@dataclass
class Serving:
    """A running `tartlet serve`."""

    run_dir: Path
    process: subprocess.Popen[bytes]
    log: Path
    small_disk: Path | None = None  # this process's path to the small file system with its journals
    lines: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"unix:{self.run_dir}/runtime.sock"

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def until(self, text: str, count: int = 1, timeout_s: float = START_S) -> None:
        """Waits until `serve` has printed a text `count` times."""
        deadline = time.monotonic() + timeout_s
        while self.text().count(text) < count:
            assert self.process.poll() is None, f"serve ended:\n{self.text()}"
            assert time.monotonic() < deadline, f"no {text!r} within {timeout_s} s:\n{self.text()}"
            time.sleep(0.02)

    def pid(self, role: str) -> int:
        """Returns the process id of a role, from the last line of `serve` about it."""
        lines = [line for line in self.text().splitlines() if line.startswith(f"{role} serves (pid ")]
        return int(lines[-1].split("pid ")[1].rstrip(")").split(",")[0])

    def kill(self, role: str) -> None:
        os.kill(self.pid(role), signal.SIGKILL)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(30)


@contextlib.contextmanager
def serving(
    run_dir: Path, *flags: str, engine: str = "fake", http: str = "off", prefix: Sequence[str] = (), **env: str
) -> Iterator[Serving]:
    """Runs `tartlet serve` in `run_dir`, after the command `prefix`, and checks that no process is left."""
    log = run_dir / "serve.out"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*prefix, *command("serve", "--engine", engine, "--http", http, *flags)],
            env=environment(run_dir, **env),
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
        )
    server = Serving(run_dir, process, log)
    try:
        server.until("(Ctrl-C ends it")
        yield server
        server.stop()
        assert wait_until_none(run_dir) == []
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for left in wait_until_none(run_dir, 5.0):
            left.kill()


@contextlib.asynccontextmanager
async def client_of(server: Serving) -> AsyncIterator[tartlet.AsyncClient]:
    """Yields a client of the server; the block has a time limit."""
    async with asyncio.timeout(60), tartlet.AsyncClient(server.address) as client:
        yield client


async def pools(client: tartlet.AsyncClient) -> list[dict[str, Any]]:
    """Returns the pools of all engines: free, held, total."""
    return [pool for engine in (await control_of(client))["engines"] for pool in engine["pools"].values()]


async def control_of(client: tartlet.AsyncClient) -> dict[str, Any]:
    """Returns the state of control, once control answers: on a busy machine an answer may come too late."""
    while not (state := (await client.state()).control):  # noqa: ASYNC110 - another process answers
        await asyncio.sleep(0.02)
    return state


async def until_nothing_is_held(client: tartlet.AsyncClient) -> None:
    """Waits until every pool is free again, up to the test's time limit."""
    while any(pool["held"] for pool in await pools(client)):  # noqa: ASYNC110 - another process frees them
        await asyncio.sleep(0.02)
    assert all(pool["free"] + pool["cached"] == pool["total"] for pool in await pools(client))
    assert (await control_of(client))["totals"]["leaks"] == 0


async def output(client: tartlet.AsyncClient, spec: tartlet.LaunchSpec) -> tuple[bytes, str | None]:
    """Runs a program and returns its output and its result."""
    run = await client.run(spec=spec)
    sent = b""
    async for event in run:
        if isinstance(event, tartlet.Message | tartlet.Stdout):
            sent += event.data
    assert run.ended is not None
    assert run.ended.success, run.ended.error
    return sent, run.ended.result


SAMPLERS = [
    ("hello", 0.0, 0, 1.0, 1),
    ("hello", 1.0, 0, 1.0, 1),
    ("hello", 1.0, 0, 1.0, 2),
    ("a longer prompt than the others, past a page", 0.7, 40, 1.0, 3),
    ("x", 1.5, 5, 1.0, 4),
    ("x", 0.9, 0, 0.8, 5),
    ("374+588=", 0.3, 0, 1.0, 6),
    ("number seven", 2.0, 100, 0.95, 7),
    ("number eight", 0.0, 0, 1.0, 8),
    ("hello", 1.0, 3, 1.0, 1),
]


async def ten_at_once_give_what_each_gives_alone(client: tartlet.AsyncClient) -> int:
    """Compares ten programs with different samplers, alone and together, bit for bit; returns how many texts differ."""
    source = program("sampled")
    specs = [tartlet.LaunchSpec(source=source, args=[str(a) for a in sampler]) for sampler in SAMPLERS]
    assert len(specs) == 10
    alone = [await output(client, spec) for spec in specs]
    together = await asyncio.gather(*(output(client, spec) for spec in specs))
    assert together == alone
    await until_nothing_is_held(client)
    return len({result for _, result in alone})


async def message(events: Any) -> str:
    """Returns the text of the next message."""
    async for event in events:
        if isinstance(event, tartlet.Message):
            return event.text
        assert not isinstance(event, tartlet.Ended), event
    raise AssertionError("the events ended")
