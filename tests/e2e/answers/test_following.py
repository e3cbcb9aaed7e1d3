"""Following a run in pieces: abandoned loops, waits that time out, ends that are read again."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

import tartlet
from tartlet import LaunchSpec, Source
from tartlet_common.errors.registry import Disconnected, InvalidArgument, RuntimeLost
from tests.e2e.cutting import proxy
from tests.e2e.serving import Serving, client_of, message, program, serving

TALKER = Source.python(
    """
import inferlet

async def main():
    inferlet.send("hello")
    asked = await inferlet.receive()
    for n in range(4):
        inferlet.send(f"{asked} {n}")
    return "said"
"""
)


@pytest.mark.parametrize("attached", [False, True])
async def test_a_loop_goes_on_where_the_one_before_was_left(server: Serving, attached: bool) -> None:
    async with client_of(server) as client:
        run = await client.run(TALKER)
        if attached:
            run = await client.attach((await client.launch(TALKER)).program_id)
        assert await message(run) == "hello"
        await client.send(run.program_id, "part")
        assert [await message(run) for _ in range(4)] == [f"part {n}" for n in range(4)]
        assert (await run.wait()).result == "said"
        assert (await run.wait()).result == "said", "it is known"
        assert [event async for event in run] == []


async def test_a_wait_that_times_out_loses_nothing(server: Serving) -> None:
    async with client_of(server) as client:
        run = await client.run(program("echo"))
        assert await message(run) == "ready\n"
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(run), 0.05)
        await client.send(run.program_id, "still here")
        assert await message(run) == "echo still here\n"
        waits = asyncio.ensure_future(anext(run))
        await asyncio.sleep(0)
        with pytest.raises(InvalidArgument, match="another task waits"):
            await run.wait()
        await client.send(run.program_id, "stop")
        assert (await waits).result == "answered 1"  # type: ignore[union-attr]


async def test_a_run_that_is_let_go_ends_and_so_does_reading_one_that_was_cancelled(server: Serving) -> None:
    async with client_of(server) as client:
        run = await client.run(program("echo"))
        assert await message(run) == "ready\n"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(run), 0.05)
        program_id = run.program_id
        del run
        gc.collect()
        while program_id in {info.program_id for info in await client.list()}:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        cancelled = await client.run(program("echo"))
        cancelled.cancel()
        for _ in range(2):
            with pytest.raises(Disconnected):
                await cancelled.wait()


def test_the_client_that_blocks_goes_on_too(server: Serving) -> None:
    with tartlet.Client(server.address) as client:
        run = client.run(TALKER)
        assert next(e.text for e in run if isinstance(e, tartlet.Message)) == "hello"
        client.send(run.program_id, "part")
        assert [e.text for e in run if isinstance(e, tartlet.Message)] == [f"part {n}" for n in range(4)]
        assert run.wait().result == run.wait().result == "said"


async def test_a_run_cancelled_as_its_answer_comes_leaves_no_program(server: Serving) -> None:
    async with client_of(server) as client:
        for n in range(200):
            running = asyncio.ensure_future(client.run(program("echo")))
            await asyncio.sleep(n * 1e-4)
            running.cancel()
            await asyncio.wait((running,))
            if not running.cancelled():
                running.result().cancel()
        while await client.list():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


COUNTS = Source.python(
    """
import asyncio
import inferlet

async def main():
    for n in range(150):
        inferlet.send(str(n))
        await asyncio.sleep(0.01)
    await inferlet.receive()
    return "counted"
"""
)


async def test_a_client_whose_connection_breaks_goes_on_behind_the_last_event(server: Serving) -> None:
    """The connection is cut every 50 ms, and then the server is out of reach for a second."""
    async with proxy() as cutters:
        address = await cutters.beside(server.run_dir / "runtime.sock", server.run_dir / "cut.sock")
        async with client_of(server) as direct, tartlet.AsyncClient(address) as client, asyncio.timeout(60):
            program_id = (await client.launch(COUNTS)).program_id
            run = await client.attach(program_id)
            async with cutters.cutting(every_s=0.05):
                told = [await message(run) for _ in range(100)]
            async with cutters.away():
                await asyncio.sleep(1.0)
            told += [await message(run) for _ in range(50)]
            assert told == [str(n) for n in range(150)], "nothing is lost, and nothing comes twice"
            assert cutters.cuts >= 3
            await direct.send(program_id, "go")
            assert (await run.wait()).result == "counted"


async def test_a_client_gives_up_at_once_when_nobody_knows_its_program(run_dir: Path) -> None:
    """`serve` starts a killed runtime again, and its programs without a journal are gone."""
    with serving(run_dir) as server, tartlet.Client(server.address) as client:
        run = client.attach(client.launch(spec=LaunchSpec(source=TALKER, durable=False)).program_id)
        assert next(e.text for e in run if isinstance(e, tartlet.Message)) == "hello"
        server.kill("runtime")
        with pytest.raises(RuntimeLost):
            run.wait()


async def test_a_client_that_is_closed_takes_up_nothing(server: Serving) -> None:
    async with proxy() as cutters:
        address = await cutters.beside(server.run_dir / "runtime.sock", server.run_dir / "cut2.sock")
        async with tartlet.AsyncClient(address) as client, asyncio.timeout(20):
            run = await client.attach((await client.launch(TALKER)).program_id)
            assert await message(run) == "hello"
            waits = asyncio.ensure_future(run.wait())
            for cutter in cutters.cutters:
                cutter.refuses = True
            cutters.cut()
            await asyncio.sleep(0.2)
        with pytest.raises(Disconnected):
            await waits
