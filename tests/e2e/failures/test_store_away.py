"""Redis dies, and a runtime or control behind it: programs wait for their journals, for longer than any grace."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tartlet_control.tables.keys import RETURN_S
from tests.e2e.failures.test_takeovers import ROUNDS, Roles, heard
from tests.redis_server import redis_server

GRACE_S = 0.5
AWAY_S = RETURN_S + 1.5
"""How long Redis is away: beyond it, control doesn't wait for runtimes of an earlier one any more."""


def start_control(roles: Roles) -> None:
    flags = ["--runtime-grace-s", str(GRACE_S), "--takeover-grace-s", str(GRACE_S)]
    roles.start("control", "tartlet_control", "--address", f"unix:{roles.directory}/control.sock", *flags)


@pytest.fixture(scope="module")
def roles() -> Iterator[Roles]:
    with tempfile.TemporaryDirectory(prefix="tt-") as made, contextlib.ExitStack() as stack:
        directory = Path(made)
        (directory / "redis").mkdir()
        all_ = Roles(directory, stack.enter_context(redis_server(directory / "redis")))
        stack.callback(all_.stop)
        start_control(all_)
        all_.start("worker", "tartlet_worker", "--engine", "fake", "--control", f"unix:{directory}/control.sock")
        all_.start_runtime("steady")
        yield all_


@pytest.fixture(scope="module")
def undisturbed(roles: Roles) -> tuple[list[str], str | None, list[str]]:
    return asyncio.run(heard(roles, f"unix:{roles.directory}/steady.sock"))


async def die(roles: Roles, victims: tuple[str, ...]) -> None:
    """Kills Redis and then the victims, starts all again that no other runtime replaces, and Redis last."""
    roles.redis.kill()
    for name in victims:
        roles.processes[name].kill()
        await asyncio.to_thread(roles.processes[name].wait)
    if "control" in victims:
        start_control(roles)
    if "steady" in victims:
        roles.start_runtime("steady")
    await asyncio.sleep(AWAY_S)
    await asyncio.to_thread(roles.redis.start)


@pytest.mark.parametrize("victims", [("first",), ("steady",), ("second", "control"), ("steady", "control")])
async def test_a_program_waits_for_its_journal_while_redis_is_away(
    roles: Roles, undisturbed: tuple[list[str], str | None, list[str]], victims: tuple[str, ...]
) -> None:
    runtime = victims[0]
    address = f"unix:{roles.directory}/{runtime}.sock" if runtime == "steady" else roles.start_runtime(runtime)
    deaths: list[asyncio.Future[None]] = []

    def on_call(call: int) -> None:
        if call == 1:
            deaths.append(asyncio.ensure_future(die(roles, victims)))

    try:
        said, result, calls = await heard(roles, address, on_call)
    finally:
        await asyncio.gather(*deaths)
    assert (said, result) == undisturbed[:2]
    assert calls == [str(n) for n in range(ROUNDS)], "the tool is called once a round"
