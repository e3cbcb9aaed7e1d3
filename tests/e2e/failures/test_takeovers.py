"""Runtimes die before and after each delivery, store, send and answer: another runtime goes on.

Journals are in a real Redis, and at the moments that touch the store also in files of a directory that runtimes share.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import tartlet
from tartlet import LaunchSpec
from tartlet_common.errors.registry import RuntimeLost, TartletError, Unavailable, UnknownProgram
from tests.e2e.dying_runtime import POINTS
from tests.e2e.serving import program, until_nothing_is_held
from tests.redis_server import RedisServer, redis_server

ROUNDS = 5
SEED = int(os.environ.get("TARTLET_TEST_SEED", "0")) or random.SystemRandom().randrange(1 << 30)
REDIS, FILES = "redis", "files"
STEADY = {REDIS: "steady", FILES: "steady-files"}
"""The runtime of each store that stays."""
AT = {
    REDIS: [point for point in POINTS if point not in {"write", "rerun"}],
    FILES: ["write", "delivery", "message", "end"],
}
MOMENTS = [(store, point, when) for store, points in AT.items() for point in points for when in ("before", "after")]
RARE = {"end": 1, "ended": 1, "reply": ROUNDS, "message": ROUNDS, "output": 2 * ROUNDS}
"""How often a point is passed at most, of those that are passed seldom."""


@dataclass
class Roles:
    """Control, a worker and runtimes of two stores as processes that talk over Unix sockets in one directory."""

    directory: Path
    redis: RedisServer
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, module: str, *flags: str, **env: str) -> None:
        home = self.directory / name
        home.mkdir(mode=0o700, exist_ok=True)
        with (home / "log").open("ab") as log:
            command = [sys.executable, "-m", module, *flags]
            environment = {**os.environ, "TARTLET_RUN_DIR": str(home), **env}
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def start_runtime(self, name: str, store: str = REDIS, **env: str) -> str:
        """Starts a runtime with its journals in Redis or in a directory of that name, and returns its address."""
        address = f"unix:{self.directory}/{name}.sock"
        flags = ["--address", address, "--control", f"unix:{self.directory}/control.sock"]
        files = ["--journal-dir", f"{self.directory}/{store}"]
        flags += ["--journal-url", self.redis.url] if store == REDIS else files
        flags += ["--guest-socket", f"{self.directory}/{name}.guest"]
        self.start(name, "tests.e2e.dying_runtime", *flags, **env)
        return address

    def log(self, name: str) -> str:
        return (self.directory / name / "log").read_text(errors="replace")

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()


@pytest.fixture(scope="module")
def roles() -> Iterator[Roles]:
    with tempfile.TemporaryDirectory(prefix="tt-") as made, contextlib.ExitStack() as stack:
        directory = Path(made)
        (directory / "redis").mkdir()
        all_ = Roles(directory, stack.enter_context(redis_server(directory / "redis")))
        stack.callback(all_.stop)
        control = f"unix:{directory}/control.sock"
        all_.start("control", "tartlet_control", "--address", control, "--runtime-grace-s", "0.3")
        all_.start("worker", "tartlet_worker", "--engine", "fake", "--control", control)
        for store, name in STEADY.items():
            all_.start_runtime(name, store)
        yield all_


async def heard(
    roles: Roles, launcher: str, on_call: Callable[[int], None] = lambda _: None, store: str = REDIS
) -> tuple[list[str], str | None, list[str]]:
    """Runs the agent at a runtime and follows it at the store's steady one; returns output, result and tool calls.

    `on_call` is called with the number of each tool call before it is answered.
    """
    steady = f"unix:{roles.directory}/{STEADY[store]}.sock"
    said, calls = [], []
    async with asyncio.timeout(90), tartlet.AsyncClient(steady) as client:
        program_id = await _launched(launcher, client)
        run = await client.attach(program_id)
        async for event in run:
            if isinstance(event, tartlet.Message | tartlet.Stdout):
                said.append(event.text)
            if isinstance(event, tartlet.Message) and event.text.startswith("call "):
                number = event.text.split()[1]
                calls.append(number)
                on_call(int(number))
                await client.send(program_id, f"answer {number}")
        assert run.ended is not None
        assert run.ended.success, run.ended.error
        await until_nothing_is_held(client)
        return said, run.ended.result, calls


async def _launched(address: str, steady: tartlet.AsyncClient) -> str:
    """Launches once the runtime is there. If it dies before it answers, the key finds the program at the steady one."""
    spec = LaunchSpec(
        source=program("tools/agent"), args=[str(ROUNDS)], seed=bytes(16), idempotency_key=os.urandom(8).hex()
    )
    while not os.path.exists(address.removeprefix("unix:")):  # noqa: ASYNC110, ASYNC240, PTH110 - another process
        await asyncio.sleep(0.05)
    try:
        async with tartlet.AsyncClient(address, retry_s=0.5) as client:
            return (await client.launch(spec=spec)).program_id
    except Unavailable:
        return (await steady.launch(spec=spec)).program_id


@pytest.fixture(scope="module")
def undisturbed(roles: Roles) -> tuple[list[str], str | None, list[str]]:
    return asyncio.run(heard(roles, f"unix:{roles.directory}/steady.sock"))


@pytest.mark.parametrize(("store", "point", "when"), MOMENTS)
async def test_a_program_outlives_its_runtime_at_any_moment(
    roles: Roles, undisturbed: tuple[list[str], str | None, list[str]], store: str, point: str, when: str
) -> None:
    count = random.Random(f"{SEED} {point} {when}").randint(1, RARE.get(point, 25))
    name = f"{store}-{point}-{when}"
    address = roles.start_runtime(name, store, TARTLET_DIES=f"{point}:{when}:{count}")
    said, result, calls = await heard(roles, address, store=store)
    assert (said, result) == undisturbed[:2], f"TARTLET_TEST_SEED={SEED} {name} {count}"
    assert calls == [str(n) for n in range(ROUNDS)], "the tool is called once a round"
    deadline = time.monotonic() + 5
    while roles.processes[name].poll() is None and time.monotonic() < deadline:  # noqa: ASYNC110 - a process ends
        await asyncio.sleep(0.05)
    assert roles.processes[name].poll() == -9, f"it didn't die:\n{roles.log(name)}"


async def test_a_program_that_kills_whoever_takes_it_over_ends_typed_and_leaves_a_runtime(roles: Roles) -> None:
    names = [f"victim-{n}" for n in range(6)]
    first = roles.start_runtime(names[0], "victims", TARTLET_DIES="message:after:1")
    for name in names[1:]:
        roles.start_runtime(name, "victims", TARTLET_DIES="rerun:before:1")
    async with asyncio.timeout(60), tartlet.AsyncClient(f"unix:{roles.directory}/steady.sock") as client:
        program_id = await _launched(first, client)
        run = await client.attach(program_id)
        error: TartletError | None
        try:
            while not isinstance(await anext(run), tartlet.Message):  # its journal is stored by then
                pass
            answering = asyncio.ensure_future(client.send(program_id, "answer 0"))
            error = (await run.wait()).error
        except TartletError as e:
            error = e
        await asyncio.wait([answering])
        assert isinstance(answering.exception(), RuntimeLost | UnknownProgram | Unavailable | None)
    assert isinstance(error, RuntimeLost)
    dead = [name for name in names if roles.processes[name].poll() == -9]
    assert names[0] in dead
    assert len(dead) == 5, "the runtime that ran it, and four that took it over"
