"""The programs' store outlives control where a Redis keeps it: control is killed while programs count in it."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import tartlet
from tests.e2e.serving import program, serving
from tests.redis_server import redis_server

COUNT = 60


async def test_a_program_counts_on_in_the_store_while_control_is_killed_at_random(run_dir: Path) -> None:
    pick = random.Random(18)
    with redis_server(run_dir / "redis") as redis, serving(run_dir, TARTLET_CONTROL_STORE_URL=redis.url) as server:
        async with asyncio.timeout(150), tartlet.AsyncClient(server.address) as client:
            counting = await client.run(program("counter"), [str(COUNT)])
            ended = asyncio.ensure_future(counting.wait())
            for _ in range(3):
                await asyncio.sleep(pick.uniform(0.05, 0.5))
                serves = server.text().count("control serves")
                server.kill("control")
                await asyncio.to_thread(server.until, "control serves", serves + 1)
            outcome = await ended
            assert outcome.result == f"{COUNT} {'01' + '11' * (COUNT - 1)}", outcome.error
            again = await (await client.run(program("counter"), ["1"])).wait()
            assert again.result == f"{COUNT + 1} 11"
