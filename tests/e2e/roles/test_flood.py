"""One tenant floods an engine, in memory and in device time; another keeps its share, and none of its programs ends.

Nor does that change while the Redis of control's directory fails.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tartlet
from tartlet_common.errors.registry import TenantOverShare
from tests.e2e.cluster import Cluster, cluster
from tests.redis_faults import BreakableRedis, breakable_redis
from tests.run_directory import run_directory

PROGRAM = """# Fills a context with as many tokens as its argument says, and generates without end.

import sys

import inferlet


async def main() -> None:
    count = int(sys.argv[1])
    async with inferlet.Context(seed=1) as ctx:
        ctx.fill_tokens([5 + n % 97 for n in range(count)])
        inferlet.send("begins")
        async for _ in ctx.generate(max_tokens=100_000, eos=False):
            pass
"""
MASKED = """# Fills a context with as many tokens as its argument says, hides one of them, and waits.

import sys

import inferlet


async def main() -> None:
    count = int(sys.argv[1])
    async with inferlet.Context(seed=1) as ctx:
        ctx.fill_tokens([5 + n % 97 for n in range(count)])
        ctx.mask(range(1))
        async for _ in ctx.generate(max_tokens=1, eos=False):
            pass
        inferlet.send("idle")
        await inferlet.receive()
"""
FLOOD, FEW = 20, 3
TOKENS = 480
"""Of each program's prompt: 30 pages. The engine has 292, the flood asks for 600."""
CONTROL = ("--shared-pools", "/open", "--prefix-cache", "false")  # all prompts are equal, and each takes its own pages
PAGES = ("--kv-memory-bytes", str(292 * 16 * 1024))
WORKER = ("--pool", "/open", *PAGES, "--fake-step-s", "0.02", "--max-batch-commands", "4")


@pytest.fixture(scope="module")
def redis() -> Iterator[BreakableRedis]:
    """The Redis of control's directory."""
    with run_directory() as directory, breakable_redis(directory) as running:
        yield running


@pytest.fixture(scope="module")
def small(redis: BreakableRedis) -> Iterator[Cluster]:
    """A runtime, and a fake engine with few pages whose steps take few commands."""
    control = (*CONTROL, "--directory-url", redis.url)
    with (
        tempfile.TemporaryDirectory(prefix="tt-") as directory,
        cluster(Path(directory), runtimes=1, control_flags=control, worker_flags=WORKER) as made,
    ):
        yield made


def _client(made: Cluster, *names: str) -> tartlet.AsyncClient:
    return tartlet.AsyncClient(made.runtimes[0], control=made.control, tls=made.identity(*names))


async def _programs(operator: tartlet.AsyncClient) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {"a": [], "b": []}
    for each in (await operator.state()).control["programs"]:
        found[each["tenant"]].append(each)
    return found


def _service_s(programs: list[dict[str, Any]]) -> float:
    return sum(float(each["service_s"]) for each in programs)


async def _until(operator: tartlet.AsyncClient, holds: Callable[[dict[str, list[dict[str, Any]]]], bool]) -> None:
    while not holds(await _programs(operator)):  # noqa: ASYNC110 - other processes change it
        await asyncio.sleep(0.1)


async def test_a_flooding_tenant_takes_neither_share_nor_programs_from_another(
    small: Cluster, redis: BreakableRedis
) -> None:
    spec = tartlet.LaunchSpec(
        source=tartlet.Source(PROGRAM.encode(), filename="filler.py"), args=[str(TOKENS)], durable=False
    )
    async with (
        asyncio.timeout(150),
        _client(small, "tenant.a", "client") as a,
        _client(small, "tenant.b", "client") as b,
        _client(small, "operator") as operator,
    ):
        flood = [await a.launch(spec=replace(spec)) for _ in range(FLOOD)]
        await _until(operator, lambda now: sum(each["pages"] for each in now["a"]) > 200)
        few = [await b.launch(spec=replace(spec)) for _ in range(FEW)]
        await _until(operator, lambda now: all(each["sampled_tokens"] > 2 for each in now["b"]))
        before = await _programs(operator)
        for fault in ("", "killed", "flushed", "slow"):
            with redis.mended():
                if fault:
                    redis.break_by(fault)
                await asyncio.sleep(2)
                after = await _programs(operator)
            assert (len(after["a"]), len(after["b"])) == (FLOOD, FEW)
            states = [each["state"] for each in after["a"]]
            assert "suspended" in states, states
            assert [each["state"] for each in after["b"]] == ["running"] * FEW
        served = {tenant: _service_s(after[tenant]) - _service_s(before[tenant]) for tenant in "ab"}
        assert served["b"] >= 0.9 * 0.5 * sum(served.values()), served
        assert "the directory isn't kept" in small.roles["control"].log.read_text()
        for client, runs in ((a, flood), (b, few)):
            for run in runs:
                await client.kill(run.program_id)


async def test_masked_contexts_over_a_tenants_share_end_for_another_tenant_within_its_own(small: Cluster) -> None:
    masked = tartlet.LaunchSpec(
        source=tartlet.Source(MASKED.encode(), filename="masked.py"), args=[str(140 * 16)], durable=False
    )
    plain = tartlet.LaunchSpec(
        source=tartlet.Source(PROGRAM.encode(), filename="filler.py"), args=[str(TOKENS)], durable=False
    )
    async with (
        asyncio.timeout(100),
        _client(small, "tenant.a", "client") as a,
        _client(small, "tenant.b", "client") as b,
        _client(small, "operator") as operator,
    ):
        first, second = [await a.run(spec=replace(masked)) for _ in range(2)]
        for run in (first, second):
            assert isinstance(await anext(run), tartlet.Message)
        calm = await b.launch(spec=plain)
        await _until(operator, lambda now: any(each["sampled_tokens"] > 2 for each in now["b"]))
        await _until(operator, lambda now: len(now["a"]) == 1)
        [left] = (await _programs(operator))["a"]
        [gone] = [run for run in (first, second) if run.program_id != left["id"]]
        assert isinstance((await gone.wait()).error, TenantOverShare)
        await a.kill(left["id"])
        await b.kill(calm.program_id)
