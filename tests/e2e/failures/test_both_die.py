"""A runtime and control die together: the next control finds the programs' journals and names another runtime."""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import tartlet
from tartlet import LaunchSpec
from tests.e2e.failures.test_takeovers import ROUNDS, SEED, Roles, heard
from tests.e2e.serving import message, program, serving, until_nothing_is_held
from tests.redis_server import redis_server

GRACE_S = 0.5
ORDERS = ("runtime", "control", "both")
"""Who dies first, of deaths that follow each other within the runtime's grace."""


def start_control(roles: Roles) -> None:
    address = f"unix:{roles.directory}/control.sock"
    roles.start("control", "tartlet_control", "--address", address, "--runtime-grace-s", str(GRACE_S))


@pytest.fixture(scope="module")
def roles() -> Iterator[Roles]:
    with tempfile.TemporaryDirectory(prefix="tt-") as made, contextlib.ExitStack() as stack:
        directory = Path(made)
        (directory / "redis").mkdir()
        all_ = Roles(directory, stack.enter_context(redis_server(directory / "redis")))
        stack.callback(all_.stop)
        start_control(all_)
        control = f"unix:{directory}/control.sock"
        all_.start("worker", "tartlet_worker", "--engine", "fake", "--control", control, "--fake-step-s", "0.002")
        all_.start_runtime("steady")
        yield all_


@pytest.fixture(scope="module")
def undisturbed(roles: Roles) -> tuple[list[str], str | None, list[str]]:
    return asyncio.run(heard(roles, f"unix:{roles.directory}/steady.sock"))


async def kill(roles: Roles, runtime: str, order: str, pick: random.Random) -> None:
    """Kills a runtime and control, one after the other or both at once, and starts control again."""
    await asyncio.sleep(pick.uniform(0.0, 0.1))
    first, second = (runtime, "control") if order == "runtime" else ("control", runtime)
    roles.processes[first].kill()
    if order != "both":
        await asyncio.sleep(pick.uniform(0.0, GRACE_S / 2))
    roles.processes[second].kill()
    for name in (first, second):
        await asyncio.to_thread(roles.processes[name].wait)
    start_control(roles)


@pytest.mark.parametrize("order", ORDERS)
async def test_a_program_outlives_its_runtime_and_control(
    roles: Roles, undisturbed: tuple[list[str], str | None, list[str]], order: str
) -> None:
    pick = random.Random(f"{SEED} {order}")
    at_call = pick.randrange(ROUNDS - 2)  # on a quick machine the last rounds may be over before the kill
    name = f"first-{order}"
    address = roles.start_runtime(name)
    deaths: list[asyncio.Future[None]] = []

    def die(call: int) -> None:
        if call == at_call and not deaths:
            deaths.append(asyncio.ensure_future(kill(roles, name, order, pick)))

    said, result, calls = await heard(roles, address, die)
    await deaths[0]
    assert (said, result) == undisturbed[:2], f"TARTLET_TEST_SEED={SEED}"
    assert calls == [str(n) for n in range(ROUNDS)], "the tool is called once a round"
    # the first control may have named the next owner in the moment between the two deaths
    told = "begins again" if order == "runtime" else "its journal alone"
    assert told in roles.log("steady"), "nobody else could go on"


ONE_ANSWER = tartlet.Source.python(
    """
from inferlet import Context, receive, send

async def main():
    async with Context() as ctx:
        ctx.fill("What is asked?")
        text = await ctx.generate_until(max_tokens=4)
        send("ready")
        return f"{await receive()}: {text}"
"""
)


def has_end(roles: Roles, program_id: str) -> bool:
    """Returns whether the last record of a program's journal has the program's result."""
    script = "return redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1][2][2]:find('\"result\"', 1, true)"
    return bool(roles.redis.command("EVAL", script, "1", f"tartlet:journal:{program_id}").strip())


async def test_an_end_that_nobody_was_told_outlives_runtime_and_control(roles: Roles) -> None:
    """The program ends while control is dead, so that its runtime can't tell the end before it dies as well."""
    address = roles.start_runtime("last")
    spec = LaunchSpec(source=ONE_ANSWER, seed=bytes(16), idempotency_key="ended")
    async with (
        asyncio.timeout(90),
        tartlet.AsyncClient(f"unix:{roles.directory}/steady.sock") as steady,
        tartlet.AsyncClient(address) as last,
    ):
        while not Path(address.removeprefix("unix:")).exists():  # noqa: ASYNC110, ASYNC240 - another process
            await asyncio.sleep(0.05)
        expected = await steady.attach((await steady.launch(spec=_keyed(spec, "undisturbed"))).program_id)
        await steady.send(expected.program_id, "answer")
        run = await steady.attach((await last.launch(spec=spec)).program_id)
        assert await message(run) == "ready"
        roles.processes["control"].kill()
        await last.send(run.program_id, "answer")
        while not has_end(roles, run.program_id):  # noqa: ASYNC110 - Redis tells nobody
            await asyncio.sleep(0.02)
        roles.processes["last"].kill()
        for name in ("control", "last"):
            await asyncio.to_thread(roles.processes[name].wait)
        start_control(roles)
        ended = await run.wait()
        assert ended.success, ended.error
        assert ended.result == (await expected.wait()).result
        assert (await steady.launch(spec=spec)).program_id == run.program_id, "its key names it as before"
        await until_nothing_is_held(steady)


async def test_a_stack_whose_runtime_and_control_are_killed_goes_on_from_its_files(run_dir: Path) -> None:
    spec = LaunchSpec(source=program("tools/agent"), args=["3"], seed=bytes(16), idempotency_key="once")
    with serving(run_dir, TARTLET_CONTROL_RUNTIME_GRACE_S=str(GRACE_S), TARTLET_WORKER_FAKE_STEP_S="0.01") as server:
        async with asyncio.timeout(120), tartlet.AsyncClient(server.address) as client:
            heard_of: list[tuple[list[str], str | None]] = []
            for key, kills in (("undisturbed", False), ("disturbed", True)):
                run = await client.launch(spec=_keyed(spec, key))
                calls: list[str] = []
                async for event in await client.attach(run.program_id):
                    if isinstance(event, tartlet.Message) and event.text.startswith("call "):
                        calls.append(event.text)
                        if kills and len(calls) == 2:
                            server.kill("control")
                            server.kill("runtime")
                        await client.send(run.program_id, f"answer {len(calls)}")
                again = await client.launch(spec=_keyed(spec, key))
                assert again.program_id == run.program_id, "the key names the program as before"
                ended = await (await client.attach(run.program_id)).wait()
                assert ended.success, ended.error
                heard_of.append((calls, ended.result))
            assert heard_of[0] == heard_of[1]
            await until_nothing_is_held(client)


def _keyed(spec: LaunchSpec, key: str) -> LaunchSpec:
    return LaunchSpec(source=spec.source, args=spec.args, seed=spec.seed, idempotency_key=key)
