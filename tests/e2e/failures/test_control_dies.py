"""Programs go on when control is killed at any moment, or when another control takes its place."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import tartlet
from tests.e2e.cluster import Cluster
from tests.e2e.cutting import STEP_S, round_of
from tests.e2e.serving import program, serving, until_nothing_is_held
from tests.redis_server import redis_server

PROGRAMS = 8


async def test_programs_get_the_same_tokens_when_control_is_killed_at_random(run_dir: Path) -> None:
    pick = random.Random(25)
    with serving(run_dir, TARTLET_WORKER_FAKE_STEP_S=STEP_S) as server:
        async with asyncio.timeout(150), tartlet.AsyncClient(server.address) as client:
            undisturbed = await round_of(client)
            for _ in range(3):
                running = asyncio.ensure_future(round_of(client))
                await asyncio.sleep(pick.uniform(0.02, 0.4))
                serves = server.text().count("control serves")
                server.kill("control")
                assert await running == undisturbed
                await asyncio.to_thread(server.until, "control serves", serves + 1)
            await until_nothing_is_held(client)


async def test_long_contexts_are_not_computed_again_when_control_dies(run_dir: Path) -> None:
    """The worker still has their rows: control computes no more than the last, partial row of each again."""

    async def begin(client: tartlet.AsyncClient) -> list[tartlet.Run]:
        specs = [
            tartlet.LaunchSpec(source=program("places/long_context"), args=[str(n), "2000"]) for n in range(PROGRAMS)
        ]
        running = [await client.run(spec=spec) for spec in specs]
        for each in running:
            said = await anext(each)
            assert isinstance(said, tartlet.Message)
            assert said.data == b"filled"
        return running

    async def finish(client: tartlet.AsyncClient, running: list[tartlet.Run]) -> list[object]:
        for each in running:
            await client.send(each.program_id, b"go on")
        ended = [await each.wait() for each in running]
        assert all(each.success for each in ended), ended
        return [each.result for each in ended]

    with serving(run_dir) as server:
        async with asyncio.timeout(100), tartlet.AsyncClient(server.address) as client:
            undisturbed = await finish(client, await begin(client))
            running = await begin(client)
            await asyncio.sleep(1)  # control tells the worker what its pages hold a few times a second
            serves = server.text().count("control serves")
            server.kill("control")
            await asyncio.to_thread(server.until, "control serves", serves + 1)
            assert await finish(client, running) == undisturbed
            [engine] = (await client.state()).control["engines"]
            assert engine["adopted_tokens"] > PROGRAMS * 1980
            assert engine["computed_tokens"] < PROGRAMS * (20 + 2 * engine["page_size"])
            await until_nothing_is_held(client)


async def test_a_standby_goes_on_with_all_programs_when_the_leader_is_killed(run_dir: Path) -> None:
    roles = Cluster(run_dir)

    def start(url: str) -> None:
        tls = roles.identity("control")
        for name, status in (("leader", 200), ("standby", 503)):
            roles.start(name, "control", "--address", roles.control, "--lease-url", url, tls=tls)
            roles.roles[name].until_readyz(status, "" if status == 200 else "standby")
        roles.start_worker("--fake-step-s", STEP_S)
        roles.start_runtime(0)
        for name in ("worker", "runtime0"):
            roles.roles[name].until_readyz(200)

    with redis_server(run_dir / "redis") as redis:
        try:
            await asyncio.to_thread(start, redis.url)
            tls = roles.identity("client")
            async with tartlet.AsyncClient(roles.runtimes[0], control=roles.control, tls=tls) as client:
                async with asyncio.timeout(100):
                    undisturbed = await round_of(client)
                    running = asyncio.ensure_future(round_of(client))
                    await asyncio.sleep(0.2)
                    roles.roles["leader"].kill()
                    assert await running == undisturbed
                    await asyncio.to_thread(roles.roles["standby"].until_readyz, 200)
                    await until_nothing_is_held(client)
        finally:
            roles.stop()
