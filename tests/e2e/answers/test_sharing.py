"""What programs share and who goes first, on the real engine with the demo model, whatever the directory's Redis does.

Sharing of prompts and names is counted in computed tokens.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import grpc.aio
import pytest

import tartlet
from tartlet_protos import control_pb2, control_pb2_grpc
from tests.e2e.serving import Serving, control_of, output, serving, until_nothing_is_held
from tests.redis_faults import BreakableRedis, breakable_redis
from tests.run_directory import run_directory

HERE = Path(__file__).parent
MODEL = HERE.parents[2] / "models" / "demo"
PROGRAM = tartlet.Source.from_file(HERE / "prefixes.py")
WAVES = """# Makes the calls of its argument's waves, those of a wave side by side; returns the tokens of each as JSON.

import asyncio
import json

import inferlet


async def call(prefill: int, decode: int) -> list[int]:
    async with inferlet.Context(seed=1) as ctx:
        ctx.fill_tokens([5 + n % 97 for n in range(prefill)])
        return [piece.token async for piece in ctx.generate(max_tokens=decode, eos=False)]


async def main(args: list[str]) -> str:
    waves = json.loads(args[0])
    return json.dumps([await asyncio.gather(*(call(*each) for each in wave)) for wave in waves])
"""
POOL = "demo"
SLOTS = 2
SHORT = [[[8, 2]]]
"""Waves of calls, in tokens to prefill and to decode."""
FAULTS = ("killed", "flushed", "slow")


@pytest.fixture(scope="module")
def redis() -> Iterator[BreakableRedis]:
    """The Redis of the server's directory."""
    with run_directory() as directory, breakable_redis(directory) as running:
        yield running


@pytest.fixture(scope="module")
def torch_server(redis: BreakableRedis) -> Iterator[Serving]:
    """A server with the demo model in batch-invariant mode and small batches, shared by the module's tests."""
    env = {
        "TARTLET_CONTROL_DIRECTORY_URL": redis.url,
        "TARTLET_WORKER_BATCH_INVARIANT": "true",
        "TARTLET_WORKER_MAX_BATCH_COMMANDS": str(SLOTS),
        "TARTLET_WORKER_POOL": POOL,
    }
    with run_directory() as directory, serving(directory, "--model", str(MODEL), engine="torch", **env) as running:
        yield running


async def told(server: Serving, *args: str, tenant: str = "") -> list[Any]:
    async with tartlet.AsyncClient(server.address, tenant=tenant or None) as client:
        _, result = await output(client, tartlet.LaunchSpec(source=PROGRAM, args=[*args]))
    assert result is not None
    found: list[Any] = json.loads(result)
    return found


async def engine_tokens(server: Serving) -> int:
    """Return what the engines say that they have computed."""
    async with tartlet.AsyncClient(server.address) as client:
        return sum(engine["computed_tokens"] for engine in (await client.state()).control["engines"])


async def test_an_equal_prompt_is_computed_once_for_a_tenant_and_never_for_another(torch_server: Serving) -> None:
    before = await engine_tokens(torch_server)
    text, length, computed, cached = await told(torch_server, "ask", tenant="a")
    assert cached == 0
    assert await engine_tokens(torch_server) - before == computed
    again = await told(torch_server, "ask", tenant="a")
    assert again[:2] == [text, length]
    prompt = length - 12
    assert again[3] >= (prompt - 1) // 32 * 32
    assert again[2] == computed - again[3]
    other = await told(torch_server, "ask", tenant="b")
    assert other == [text, length, computed, 0]
    alone = await told(torch_server, "alone", tenant="a")
    assert alone == [text, length, computed, 0]


async def test_a_longer_prompt_takes_over_what_it_shares(torch_server: Serving) -> None:
    await told(torch_server, "ask", tenant="c")
    plain = await told(torch_server, "alone", "374+588=", tenant="c")
    shared = await told(torch_server, "ask", "374+588=", tenant="c")
    assert shared[:2] == plain[:2]
    assert shared[3] > 0
    assert shared[2] + shared[3] == plain[2]


async def test_a_saved_context_costs_its_last_tokens_after_its_program(torch_server: Serving) -> None:
    tokens, number, digest = await told(torch_server, "save", tenant="d")
    assert (number, len(digest)) == (1, 32)
    plain = await told(torch_server, "alone", "374+588=", tenant="e")
    loaded = await told(torch_server, "load", "374+588=", tenant="d")
    assert loaded[:2] == plain[:2]
    assert loaded[3] >= (tokens - 1) // 32 * 32
    assert loaded[2] + loaded[3] == plain[2]


@pytest.mark.timeout(200)
async def test_a_fault_of_the_directory_changes_neither_texts_nor_computed_tokens(
    torch_server: Serving, redis: BreakableRedis
) -> None:
    async def told_to(tenant: str, happens: Callable[[], None]) -> list[Any]:
        first = await told(torch_server, "ask", tenant=tenant)
        happens()
        again = await told(torch_server, "ask", tenant=tenant)
        other = await told(torch_server, "ask", tenant=f"{tenant}-other")
        saved = await told(torch_server, "save", tenant=tenant)
        loaded = await told(torch_server, "load", "374+588=", tenant=tenant)
        assert again[3] > other[3] == 0
        return [first, again, other, saved[:2], loaded]

    async with asyncio.timeout(150):
        undisturbed = await told_to("undisturbed", nothing)
        for fault in FAULTS:
            with redis.mended():
                assert await told_to(fault, partial(redis.break_by, fault)) == undisturbed


def nothing() -> None:
    """Nothing happens to the directory's Redis."""


class Ends(NamedTuple):
    """How the programs of a load ended."""

    texts: list[Any]
    """What each returned."""
    turn: list[str]
    """Their names, in the order in which they ended."""


async def text_of(client: tartlet.AsyncClient, name: str, waves: Any, turn: list[str]) -> str | None:
    """Run a program; returns what it returned, and adds its name to `turn` at its end."""
    source = tartlet.Source(WAVES.encode(), filename=f"{name}.py")
    spec = tartlet.LaunchSpec(source=source, args=[json.dumps(waves)], durable=False)
    ended = await (await client.run(spec=spec)).wait()
    assert ended.success, ended.error
    turn.append(name)
    return ended.result


async def ends_of(client: tartlet.AsyncClient, decode: int, quantum_s: float, happens: Callable[[], None]) -> Ends:
    """Run two long programs, and three short ones that come once a long one has had its quantum.

    A long one decodes so many tokens in each of its calls, and alone fills each step.
    """
    long = [[[24, decode]] * SLOTS]
    while True:
        turn: list[str] = []

        async def comes_in_time(condition: Callable[[Any], bool], turn: list[str] = turn) -> bool:
            while "long" not in turn and not condition((await control_of(client))["programs"]):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            return "long" not in turn

        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(text_of(client, "long", long, turn)) for _ in range(2)]
            await comes_in_time(lambda programs: any(each["service_s"] > quantum_s for each in programs))
            happens()
            running += [tasks.create_task(text_of(client, "short", SHORT, turn)) for _ in range(3)]
            beside = await comes_in_time(lambda programs, turn=turn: len(programs) + len(turn) >= 5)  # type: ignore[misc]
        if beside:  # else the machine was too busy to launch a program beside others
            return Ends([task.result() for task in running], turn)


async def short_s(client: tartlet.AsyncClient) -> float:
    """Return the device time of a short program alone, in seconds: it differs by far with the load of the machine."""
    [before] = (await control_of(client))["engines"]
    await text_of(client, "short", SHORT, [])
    [after] = (await control_of(client))["engines"]
    return float(after["device_s"] - before["device_s"])


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("order", "decode"),
    [
        ("fcfs", 26),
        ("plas", 100),  # else on a fast machine a long one ends before all short ones are launched
        ("gittins", 100),
    ],
)
async def test_who_goes_first_is_the_same_whatever_becomes_of_the_directory(
    torch_server: Serving, redis: BreakableRedis, order: str, decode: int
) -> None:
    async with (
        asyncio.timeout(150),
        tartlet.AsyncClient(torch_server.address, tenant="orders") as client,
        grpc.aio.insecure_channel(f"unix:{torch_server.run_dir}/control.sock") as channel,
    ):
        quantum_s = 3 * await short_s(client)
        asked = control_pb2.PoolOrder(pool=f"/{POOL}", order=order, quanta_s=[quantum_s, 3600.0], starved_at=0.0)
        control: control_pb2_grpc.ControlAsyncStub = control_pb2_grpc.ControlStub(channel)
        assert not (await control.SetOrder(control_pb2.SetOrderRequest(order=asked), timeout=10)).error.number
        undisturbed = await ends_of(client, decode, quantum_s, nothing)
        if order == "fcfs":  # a short one goes before only where a long one's next token isn't there in time
            first = {undisturbed.turn[0]}
            for _ in range(4):
                first |= set() if "long" in first else {(await ends_of(client, decode, quantum_s, nothing)).turn[0]}
            assert "long" in first, "the calls of the long ones began first"
            return
        short_first = ["short"] * 3 + ["long"] * 2
        assert undisturbed.turn == short_first
        for fault in FAULTS:
            with redis.mended():
                ends = await ends_of(client, decode, quantum_s, partial(redis.break_by, fault))
            assert ends == (undisturbed.texts, short_first)


async def test_a_killed_worker_costs_a_saved_context_one_prefill(torch_server: Serving) -> None:
    await told(torch_server, "save", tenant="f")
    plain = await told(torch_server, "alone", "12+30=", tenant="f")
    served = torch_server.text().count("worker serves (pid ")
    torch_server.kill("worker")
    torch_server.until("worker serves (pid ", served + 1)
    first = await told(torch_server, "load", "12+30=", tenant="f")
    second = await told(torch_server, "load", "12+30=", tenant="f")
    assert first[:2] == second[:2] == plain[:2]
    assert (first[2], first[3]) == (plain[2], 0)
    assert second[3] > 0
    async with tartlet.AsyncClient(torch_server.address) as client:
        await until_nothing_is_held(client)
