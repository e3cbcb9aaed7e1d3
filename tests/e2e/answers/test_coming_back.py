"""The client of a `run`: it comes back when its connection breaks, or leaves on purpose, or is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import tartlet
from tartlet import LaunchSpec, Source
from tartlet_common.errors.registry import Disconnected
from tests.e2e.cutting import Proxy, proxy
from tests.e2e.serving import Serving, client_of, command, environment, message, out, program, serving
from tests.run_directory import run_directory

GRACE_S = 3.0

TICKER = Source.python(
    """
import asyncio
import inferlet

async def main():
    for n in range(100):
        print(f"line {n}")
        inferlet.send("x" * (n * 1237 % 20_000) + f" {n}\\n")
        await asyncio.sleep(0.02)
    return "ticked"
""",
)

COUNT = 100
COUNTS = f"""
import asyncio
import inferlet

async def main():
    inferlet.send("begun\\n")
    await inferlet.receive()
    for n in range({COUNT}):
        inferlet.send(f"{{n}}\\n")
        await asyncio.sleep(0.03)
    return "over"
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with run_directory() as directory, serving(directory, TARTLET_RUNTIME_CLIENT_GRACE_S=str(GRACE_S)) as running:
        yield running


@asynccontextmanager
async def _cut(server: Serving) -> AsyncIterator[tuple[Proxy, str]]:
    """Stand before the runtime; yield what cuts, and the address."""
    path = server.run_dir / "cut.sock"
    for old in (path, Path(f"{path}.frames")):
        old.unlink(missing_ok=True)
    async with proxy() as made:
        yield made, await made.beside(server.run_dir / "runtime.sock", path)


def _told(event: tartlet.Event) -> tuple[object, ...]:
    """Return what an event says; of an end without the usage, whose times differ."""
    return type(event), getattr(event, "offset", None), getattr(event, "text", None), getattr(event, "result", None)


async def _error_of(client: tartlet.AsyncClient, program_id: str) -> object:
    """Wait until a program has ended; return its error."""
    async with asyncio.timeout(30):
        while True:
            for info in await client.list(ended=True):
                if info.program_id == program_id and info.state in ("failed", "succeeded"):
                    return info.error
            await asyncio.sleep(0.02)


async def test_a_run_whose_connection_is_cut_tells_the_same_as_an_undisturbed_one(server: Serving) -> None:
    async with (
        asyncio.timeout(60),
        _cut(server) as (cutters, address),
        client_of(server) as direct,
        tartlet.AsyncClient(address) as client,
    ):
        undisturbed = [event async for event in await direct.run(TICKER)]
        run = await client.run(TICKER)
        told = [await anext(run) for _ in range(10)]
        async with cutters.cutting(every_s=0.1):
            told += [await anext(run) for _ in range(60)]
        async with cutters.away():
            await asyncio.sleep(0.5 * GRACE_S)
        told += [event async for event in run]
        assert [_told(event) for event in told] == [_told(event) for event in undisturbed]
        assert run.ended is not None
        assert run.ended.result == "ticked"
        assert cutters.cuts >= 3


async def test_a_client_that_does_not_read_comes_back_as_well(server: Serving) -> None:
    async with asyncio.timeout(60), _cut(server) as (cutters, address), tartlet.AsyncClient(address) as client:
        run = await client.run(program("echo"))
        assert await message(run) == "ready\n"
        for _ in range(2):
            cutters.cut()
            await asyncio.sleep(1.2 * GRACE_S)
        await client.send(run.program_id, "still here")
        assert await message(run) == "echo still here\n"


async def test_a_client_that_stays_away_finds_its_program_ended(server: Serving) -> None:
    async with (
        asyncio.timeout(60),
        _cut(server) as (cutters, address),
        client_of(server) as direct,
        tartlet.AsyncClient(address) as client,
    ):
        run = await client.run(program("endless"))
        await message(run)
        async with cutters.away():
            assert isinstance(await _error_of(direct, run.program_id), Disconnected)
        assert isinstance((await run.wait()).error, Disconnected)


@pytest.mark.parametrize("how", ["cancelled", "dropped", "closed", "without retries"])
async def test_a_client_that_leaves_ends_its_program_at_once(server: Serving, how: str) -> None:
    async with client_of(server) as direct:
        client = tartlet.AsyncClient(server.address, retry_s=0.0 if how == "without retries" else 30.0)
        run = await client.run(program("echo"))
        program_id = run.program_id
        left_s = time.monotonic()
        if how == "cancelled":
            run.cancel()
        elif how == "dropped":
            del run
        else:
            await client.close()
        assert isinstance(await _error_of(direct, program_id), Disconnected)
        assert time.monotonic() - left_s < 1.0
        await client.close()


async def test_who_joined_a_run_by_its_key_does_not_end_it(server: Serving) -> None:
    async with client_of(server) as client, tartlet.AsyncClient(server.address) as other:
        spec = LaunchSpec(source=program("echo"), idempotency_key="joined")
        mine, joined = await client.run(spec=spec), await other.run(spec=spec)
        assert mine.program_id == joined.program_id
        await other.close()
        await asyncio.sleep(0.3)
        await client.send(mine.program_id, "stop")
        assert (await mine.wait()).success


def _run_command(server: Serving, address: str, source: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("run", "--server", address, str(source)),
        env=environment(server.run_dir),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def test_the_command_goes_on_over_a_cut_connection(server: Serving, tmp_path: Path) -> None:
    source = tmp_path / "ticker.py"
    source.write_bytes(TICKER.data)
    told = []
    for disturbed in (False, True):
        async with _cut(server) as (cutters, address):
            process = await asyncio.to_thread(_run_command, server, address, source)
            assert process.stdout is not None
            first = await asyncio.to_thread(process.stdout.readline)
            for _ in range(3 * disturbed):
                cutters.cut()
                await asyncio.sleep(0.3)
            rest = await asyncio.to_thread(process.stdout.read)
            _, err = await asyncio.to_thread(process.communicate, timeout=60)
        assert process.returncode == 0, err
        told.append(first + rest)
    assert told[0] == told[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
async def test_ctrl_c_ends_the_program_at_once_and_a_kill_within_the_grace(
    server: Serving, number: signal.Signals
) -> None:
    path = Path(__file__).parents[1] / "programs" / "echo.py"
    process = await asyncio.to_thread(_run_command, server, server.address, path)
    assert process.stdout is not None
    assert await asyncio.to_thread(process.stdout.readline) == "ready\n"
    async with client_of(server) as client:
        (info,) = await client.list()
        os.kill(process.pid, number)
        left_s = time.monotonic()
        assert isinstance(await _error_of(client, info.program_id), Disconnected)
        took_s = time.monotonic() - left_s
        assert took_s < 1.0 if number == signal.SIGINT else GRACE_S - 0.1 < took_s < GRACE_S + 1.0
    await asyncio.to_thread(process.communicate, timeout=30)


def test_commands_and_clients_lose_no_byte_when_the_runtime_is_killed(server: Serving, tmp_path: Path) -> None:
    """SIGKILL to the runtime under `run`, `attach`, `logs -f` and `Client`: each goes on where it was."""
    source = tmp_path / "counts.py"
    source.write_text(COUNTS)
    expected = ["begun", *map(str, range(COUNT)), "over"]
    ids = [out(server.run_dir, "launch", str(source)).strip() for _ in range(3)]
    following = [
        subprocess.Popen(
            command(*args), env=environment(server.run_dir), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for args in (["run", "--server", server.address, str(source)], ["attach", ids[0]], ["logs", "-f", ids[1]])
    ]
    with ThreadPoolExecutor(1) as threads, tartlet.Client(server.address) as client:
        events = iter(client.attach(ids[2]))
        heard = [next(events)]
        begun = [process.stdout.readline() for process in following if process.stdout is not None]
        counting = [info.program_id for info in client.list() if info.name == source.name]
        assert len(counting) == 4
        for program_id in counting:
            client.send(program_id, b"go")
        serves = server.text().count("runtime serves")
        server.kill("runtime")
        rest = threads.submit(lambda: heard + list(events))
        for first, process in zip(begun, following, strict=True):
            more, errors = process.communicate(timeout=60)
            assert (process.returncode, (first + more).split()) == (0, expected), errors
        *messages, ended = rest.result(timeout=60)
    assert [event.text.strip() for event in messages if isinstance(event, tartlet.Message)] == expected[:-1]
    assert isinstance(ended, tartlet.Ended)
    assert ended.result == "over"
    server.until("runtime serves", serves + 1)
