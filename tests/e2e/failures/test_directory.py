"""What the directory in Redis keeps when control is killed, and that programs notice no fault of that Redis."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import redis

import tartlet
from tests.e2e.cutting import STEP_S, round_of
from tests.e2e.serving import Serving, serving, until_nothing_is_held
from tests.redis_server import RedisServer, redis_server

SOURCE = tartlet.Source.from_file(Path(__file__).parents[1] / "answers" / "prefixes.py")


async def told(client: tartlet.AsyncClient, *args: str) -> list[object]:
    ended = await (await client.run(SOURCE, args=list(args))).wait()
    assert ended.result is not None, ended.error
    return list(json.loads(ended.result))


def entries(url: str, section: str) -> int:
    """Return how many entries the live generation has in a section."""
    with redis.Redis.from_url(url) as client:
        live = client.get("tartlet:directory:1:{tartlet}:live")
        return 0 if live is None else int(client.hlen(f"tartlet:directory:1:{{tartlet}}:{live.decode()}/{section}"))


async def until_written(url: str, section: str) -> None:
    async with asyncio.timeout(30):
        while not await asyncio.to_thread(entries, url, section):  # noqa: ASYNC110 - Redis tells nobody
            await asyncio.sleep(0.02)


async def kill_control(server: Serving) -> None:
    serves = server.text().count("control serves")
    server.kill("control")
    await asyncio.to_thread(server.until, "control serves", serves + 1)


async def test_names_outlive_control_and_faults_of_redis_change_no_answer(run_dir: Path) -> None:
    with redis_server(run_dir / "redis") as kept:
        env = {"TARTLET_CONTROL_DIRECTORY_URL": kept.url, "TARTLET_CONTROL_ORDER": "gittins"}
        with serving(run_dir, TARTLET_WORKER_FAKE_STEP_S=STEP_S, **env) as server:
            async with asyncio.timeout(200), tartlet.AsyncClient(server.address) as client:
                undisturbed = await round_of(client)
                await told(client, "save")
                text, tokens, *_ = await told(client, "load", "Now 1 + 1 is")
                await until_written(kept.url, "names")
                await kill_control(server)
                again = await told(client, "load", "Now 1 + 1 is")
                assert again[:2] == [text, tokens]
                assert again[3] == 0, "workers have dropped the rows, so that they were computed"
                assert (await told(client, "load", "Now 1 + 1 is"))[3] != 0
                await until_written(kept.url, "histories")
                for fault in (flushed, stopped, killed):
                    running = asyncio.ensure_future(round_of(client))
                    await asyncio.sleep(0.1)
                    await fault(kept, client, [text, tokens])
                    assert await running == undisturbed
                await kill_control(server)
                assert (await told(client, "load", "Now 1 + 1 is"))[:2] == [text, tokens]
                await until_nothing_is_held(client)


async def flushed(kept: RedisServer, client: tartlet.AsyncClient, answer: list[object]) -> None:
    with redis.Redis.from_url(kept.url) as connection:
        connection.flushall()
    assert (await told(client, "load", "Now 1 + 1 is"))[:2] == answer
    await until_written(kept.url, "names")


async def stopped(kept: RedisServer, client: tartlet.AsyncClient, answer: list[object]) -> None:
    assert kept.process is not None
    kept.process.send_signal(signal.SIGSTOP)
    try:
        assert (await told(client, "load", "Now 1 + 1 is"))[:2] == answer
        await asyncio.sleep(1.5)  # longer than control waits for an answer
        assert (await told(client, "load", "Now 1 + 1 is"))[:2] == answer
    finally:
        kept.process.send_signal(signal.SIGCONT)
    await until_written(kept.url, "names")


async def killed(kept: RedisServer, client: tartlet.AsyncClient, answer: list[object]) -> None:
    kept.kill()
    assert (await told(client, "load", "Now 1 + 1 is"))[:2] == answer
    for path in kept.directory.glob("appendonlydir/*"):
        path.unlink()  # it begins empty, as one without a disk
    await asyncio.to_thread(kept.start)
    await until_written(kept.url, "names")


async def test_control_serves_while_redis_does_not_answer_and_reads_it_later(run_dir: Path) -> None:
    with redis_server(run_dir / "redis") as kept, serving(run_dir, TARTLET_CONTROL_DIRECTORY_URL=kept.url) as server:
        async with asyncio.timeout(100), tartlet.AsyncClient(server.address) as client:
            await told(client, "save")
            answer = await told(client, "load", "Now")
            await until_written(kept.url, "names")
            assert kept.process is not None
            kept.process.send_signal(signal.SIGSTOP)
            try:
                await kill_control(server)
                missing = await (await client.run(SOURCE, args=["load", "Now"])).wait()
                assert not missing.success
                assert (await told(client, "run", "Now"))[:2] == answer[:2]
            finally:
                kept.process.send_signal(signal.SIGCONT)
            async with asyncio.timeout(20):
                while "the directory had 1 names" not in server.text():  # noqa: ASYNC110 - a log tells nobody
                    await asyncio.sleep(0.05)
            assert (await told(client, "load", "Now"))[:2] == answer[:2]
