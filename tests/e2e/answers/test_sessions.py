"""A program that goes on as a new run again and again: one program for its clients, in bounded memory and journal."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import tartlet
from bench.overhead import HERE
from bench.survival.sessions import anonymous_mib
from tartlet_common.errors.registry import DeadlineExceeded, InboxFull, ProgramFailed, ProgramKilled
from tartlet_runtime.journal.records import parse_journal, read_journal
from tests.e2e.serving import Serving, client_of, serving, until_nothing_is_held

SESSION = tartlet.Source.from_file(HERE / "guests" / "session.py")
SPARES = 16
"""Sandboxes that are kept ready when little is launched."""
AHEAD = 40
"""Messages that are under way at one time: more than one run takes, so that some wait while the next run begins."""


@pytest.fixture
def server(run_dir: Path) -> Iterator[Serving]:
    with serving(run_dir, TARTLET_RUNTIME_KEEP_JOURNALS="true") as running:
        yield running


async def talk(client: tartlet.AsyncClient, run: tartlet.Run, messages: int) -> list[str]:
    """Sends the numbers from 1 on, and returns the lines that the program said."""
    said: list[str] = []
    room = asyncio.Semaphore(AHEAD)

    async def send() -> None:
        for n in range(1, messages + 1):
            await room.acquire()
            while True:
                try:
                    await client.send(run.program_id, str(n))
                    break
                except InboxFull:
                    await asyncio.sleep(0.01)

    sending = asyncio.create_task(send())
    sending.add_done_callback(lambda task: run.cancel() if task.exception() is not None else None)
    async for event in run:
        if isinstance(event, tartlet.Message):
            for line in event.text.splitlines():
                said.append(line)
                room.release()
    await sending
    return said


def sizes(server: Serving) -> tuple[int, float]:
    """Returns bytes of the largest journal, and MiB of the runtime's memory."""
    journals = []
    for path in (server.run_dir / "journals").glob("*"):
        with contextlib.suppress(FileNotFoundError):  # a next run's journal has taken its place
            journals.append(path.stat().st_size)
    return max(journals, default=0), anonymous_mib(server.pid("runtime"))


async def session(server: Serving, every: int, messages: int, *, watch_s: float = 0.2) -> list[tuple[int, float]]:
    """Holds a session, and returns what it took meanwhile, from its first third on."""
    seen: list[tuple[int, float]] = []
    async with tartlet.AsyncClient(server.address) as client:
        args = [str(n) for n in (every, messages, 0, 0, 1)]
        run = await client.run(SESSION, args)
        talking = asyncio.create_task(talk(client, run, messages))
        while not talking.done():
            seen.append(sizes(server))
            await asyncio.wait([talking], timeout=watch_s)
        said = await talking
        expected = [f"{n} {n * (n + 1) // 2}" for n in range(1, messages + 1)]
        assert said == expected
        assert run.ended is not None
        assert run.ended.error is None
        runs = -(-messages // every)
        assert run.ended.result == f"{messages * (messages + 1) // 2} in {runs} runs"
        assert run.ended.usage.sampled_tokens == 2 * runs
        await until_nothing_is_held(client)
        ids = [info.program_id for info in await client.list(ended=True)]
        assert ids == [run.program_id]
        kept = server.run_dir / "journals" / f"{run.program_id}.journal"
        header, _ = read_journal(kept)
        assert header.args[2] == str((runs - 1) * every)
        assert header.since_offset == (runs - 1) * every
    return seen[len(seen) // 3 :]


@pytest.mark.timeout(200)
async def test_a_session_of_many_runs_is_one_program(server: Serving) -> None:
    await session(server, 10, 400)
    async with client_of(server) as client:
        assert (await client.state()).spares <= SPARES, "no client asks for next runs, so nobody needs spares for them"


@pytest.mark.soak
@pytest.mark.timeout(3000)
async def test_a_session_of_100_000_messages_takes_no_more_than_its_beginning(server: Serving) -> None:
    seen = await session(server, 500, 100_000, watch_s=1.0)
    journals, memory = ([each[i] for each in seen] for i in range(2))
    assert max(journals) < 1 << 20, "a run's journal, of 500 messages"
    assert max(memory) < memory[0] + 32


@pytest.mark.timeout(200)
async def test_kills_deadlines_and_failures_end_the_program_in_whatever_run_it_is(server: Serving) -> None:
    endless = tartlet.Source.python(
        "import asyncio\nfrom inferlet import continue_as_new, send\n"
        "async def main(args):\n    await asyncio.sleep(0.01)\n"
        "    n = int(args[0]) if args else 0\n    send(str(n))\n    if n == 30:\n        1 / 0\n"
        "    try:\n        continue_as_new([str(n + 1)])\n    finally:\n        send('|')\n"
    )
    async with client_of(server) as client:
        ended = await (await client.run(endless)).wait()
        assert isinstance(ended.error, ProgramFailed)
        run = await client.run(spec=tartlet.LaunchSpec(source=endless, limits=tartlet.Limits(deadline_s=0.2)))
        assert isinstance((await run.wait()).error, DeadlineExceeded)
        forever = tartlet.Source.python(
            "from inferlet import continue_as_new\nasync def main(args):\n    continue_as_new(['x'] * 3)\n"
        )
        launched = await client.launch(forever)
        await asyncio.sleep(0.3)
        await client.kill(launched.program_id)
        ended = await (await client.attach(launched.program_id)).wait()
        assert isinstance(ended.error, ProgramKilled)
        await until_nothing_is_held(client)
        journal = server.run_dir / "journals" / f"{launched.program_id}.journal"
        records = parse_journal(journal.read_bytes(), journal.name).records
        assert json.loads(records[-1].delivery)["error"] == ProgramKilled.number
