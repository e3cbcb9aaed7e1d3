"""What programs share outlives control where a Redis keeps it: control is killed while programs count and broadcast."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import tartlet
from tartlet import Source
from tests.e2e.serving import message, program, serving
from tests.redis_server import redis_server

COUNT = 60

TOPICS = Source.python(
    """
import asyncio
import sys

import inferlet


async def main() -> str:
    role, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if role == "publish":
        await inferlet.receive()
        for n in range(count):
            await inferlet.broadcast("news", f"{name}{n}")
            await asyncio.sleep(0.01)
        return "published"
    async with inferlet.subscribe("news") as news:
        await inferlet.broadcast("others", "")  # control has the subscription before this is answered
        inferlet.send("ready")
        if role == "late":
            await inferlet.receive()
        got = []
        for n in range(count):
            got.append(await news.receive())
            if n % 7 == 0:
                await asyncio.sleep(0.02)
        return " ".join(got)
"""
)
"""Broadcasts messages to a topic, or receives so many, and then returns which ones."""
LINKED = "a new link begins"
"""What a runtime's log says once control is back. Killed sooner, control would be away for too long in all."""


async def test_a_program_counts_on_in_the_store_while_control_is_killed_at_random(run_dir: Path) -> None:
    pick = random.Random(18)
    with redis_server(run_dir / "redis") as redis, serving(run_dir, TARTLET_CONTROL_STORE_URL=redis.url) as server:
        async with asyncio.timeout(150), tartlet.AsyncClient(server.address) as client:
            counting = await client.run(program("counter"), [str(COUNT)])
            ended = asyncio.ensure_future(counting.wait())
            for _ in range(3):
                await asyncio.sleep(pick.uniform(0.05, 0.5))
                links = server.text().count(LINKED)
                server.kill("control")
                await asyncio.to_thread(server.until, LINKED, links + 1)
            outcome = await ended
            assert outcome.result == f"{COUNT} {'01' + '11' * (COUNT - 1)}", outcome.error
            again = await (await client.run(program("counter"), ["1"])).wait()
            assert again.result == f"{COUNT + 1} 11"


async def test_subscribers_get_each_message_once_and_in_order_while_control_is_killed(run_dir: Path) -> None:
    """One subscriber takes no message before control was killed, so all of them wait meanwhile."""
    pick = random.Random(5)
    each, publishers = 40, "ab"
    with redis_server(run_dir / "redis") as redis, serving(run_dir, TARTLET_CONTROL_STORE_URL=redis.url) as server:
        async with asyncio.timeout(150), tartlet.AsyncClient(server.address) as client:
            roles = [("late", "x"), ("read", "y"), ("read", "z")]
            readers = [await client.run(TOPICS, [*role, str(each * len(publishers))]) for role in roles]
            assert [await message(reader) for reader in readers] == ["ready"] * 3
            senders = [await client.run(TOPICS, ["publish", name, str(each)]) for name in publishers]
            await client.send_many([(sender.program_id, "go") for sender in senders])
            ends = [asyncio.ensure_future(run.wait()) for run in (*senders, *readers)]
            for _ in range(3):
                await asyncio.sleep(pick.uniform(0.05, 0.3))
                links = server.text().count(LINKED)
                server.kill("control")
                await asyncio.to_thread(server.until, LINKED, links + 1)
            assert [outcome.error for outcome in await asyncio.gather(*ends[:2])] == [None, None]
            server.kill("control")  # now all messages wait in the late subscription
            await client.send(readers[0].program_id, "go")
            for end in ends[2:]:
                outcome = await end
                assert outcome.success, outcome.error
                got = str(outcome.result).split()
                assert len(got) == len(set(got)) == each * len(publishers)
                for name in publishers:
                    assert [text for text in got if text[0] == name] == [f"{name}{n}" for n in range(each)]
