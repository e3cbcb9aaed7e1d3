"""Programs over real processes: client, runtime, control and a worker with the fake engine."""

from __future__ import annotations

import asyncio
import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import tartlet
from tartlet import Language, LaunchSpec, Limits, Source
from tartlet_common.errors.registry import (
    DeadlineExceeded,
    InvalidSource,
    PageQuotaExceeded,
    ProgramFailed,
    ProgramKilled,
    SourceTooLarge,
    UnknownInferlet,
    UnknownProgram,
)
from tests.e2e.serving import (
    PROGRAMS,
    Serving,
    client_of,
    message,
    program,
    serving,
    ten_at_once_give_what_each_gives_alone,
    until_nothing_is_held,
)

STD = Path(__file__).parents[3] / "inferlets" / "std"
COMPLETION = STD / "text_completion.py"


async def test_a_completion_streams_and_its_usage_is_counted(server: Serving) -> None:
    async with client_of(server) as client:
        run = await client.run(Source.from_file(COMPLETION), ["--prompt", "hi", "--max-tokens", "16"])
        pieces = [event.data async for event in run if isinstance(event, tartlet.Stdout)]
        assert len(pieces) > 3
        assert len(b"".join(pieces).rstrip(b"\n")) == 16
        assert run.ended is not None
        usage = run.ended.usage
        assert (usage.sampled_tokens, usage.input_tokens) == (16, 2)
        assert 0 < usage.first_token_s < usage.wall_s
        await until_nothing_is_held(client)


async def test_ten_programs_at_once_give_bit_for_bit_what_each_gives_alone(server: Serving) -> None:
    async with client_of(server) as client:
        assert await ten_at_once_give_what_each_gives_alone(client) == 10


async def test_a_program_that_forks_four_ways_holds_and_computes_its_prefix_once(server: Serving) -> None:
    async with client_of(server) as client:
        ended = await (await client.run(program("forks"), ["200", "4"])).wait()
        assert ended.success, ended.error
        assert ended.result is not None
        # 199 tokens of the prompt are computed before the forks: twelve full pages of 16, shared, and one begun,
        # of which each fork has its own. Contexts that share nothing hold 5 * 13 pages and embed 4 * 200 tokens more.
        assert [int(pages) for pages in ended.result.split()] == [13, 12 + 1 + 4, 12 + 1 + 4]
        assert ended.usage.peak_pages == 12 + 1 + 4
        assert 199 + 4 <= ended.usage.input_tokens <= 199 + 4 * (1 + 7)
        await until_nothing_is_held(client)


@pytest.mark.parametrize("page_size", [1, 16])
async def test_the_papers_listings_run_at_any_page_size(tmp_path: Path, page_size: int) -> None:
    directory = Path(tempfile.mkdtemp(prefix="tt-"))
    try:
        with serving(directory, TARTLET_WORKER_PAGE_SIZE=str(page_size)) as server:
            async with client_of(server) as client:
                split = await (await client.run(Source.from_file(STD / "split_forward.py"))).wait()
                assert split.result == "same", split.error
                loop = await client.run(Source.from_file(STD / "autoregressive.py"))
                printed = b"".join([e.data async for e in loop if isinstance(e, tartlet.Stdout)])
                whole = await client.run(Source.from_file(COMPLETION), ["--prompt", "Hello,", "--max-tokens", "10"])
                assert printed == b"".join([e.data async for e in whole if isinstance(e, tartlet.Stdout)])
                assert len(printed) > 5
                await until_nothing_is_held(client)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def test_many_launches_in_one_call_are_answered_in_order(server: Serving) -> None:
    good = LaunchSpec(source=Source.python("def main():\n    return 1"))
    bad = LaunchSpec(inferlet="no such inferlet")
    async with client_of(server) as client:
        answers = await client.launch_many([good, bad, good])
        assert [type(a) for a in answers] == [tartlet.Accepted, UnknownInferlet, tartlet.Accepted]


async def test_a_launched_program_outlives_its_client_and_is_messaged_by_another(server: Serving) -> None:
    async with client_of(server) as client:
        launched = await client.launch(program("echo"))
    async with client_of(server) as client:
        assert launched.program_id in [info.program_id for info in await client.list()]
        await client.send(launched.program_id, "one")
        await client.send(launched.program_id, "stop")
        run = await client.attach(launched.program_id)
        assert [e.text async for e in run if isinstance(e, tartlet.Message)] == ["ready\n", "echo one\n"]
        assert run.ended is not None
        assert run.ended.result == "answered 1"
        again = await client.attach(launched.program_id, run.ended.offset)
        assert [e async for e in again] == [run.ended]


async def test_an_idempotency_key_names_one_program(server: Serving) -> None:
    spec = LaunchSpec(source=program("echo"), idempotency_key="the only one")
    async with client_of(server) as client:
        first, second = await client.launch(spec=spec), await client.launch(spec=spec)
        assert first.program_id == second.program_id
        await client.kill(first.program_id)


async def test_a_run_whose_client_goes_away_is_ended_and_gives_everything_back(server: Serving) -> None:
    async with client_of(server) as client:
        run = await client.run(program("endless"))
        await message(run)
    async with client_of(server) as client:
        while run.program_id in [i.program_id for i in await client.list()]:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.02)
        await until_nothing_is_held(client)


async def test_kill_ends_a_program_with_its_reason(server: Serving) -> None:
    async with client_of(server) as client:
        run = await client.run(program("endless"))
        await message(run)
        await client.kill(run.program_id, "enough")
        ended = await run.wait()
        assert isinstance(ended.error, ProgramKilled)
        assert ended.error.fields["reason"] == "enough"
        await until_nothing_is_held(client)


async def test_an_exception_arrives_as_the_programs_own_traceback(server: Serving) -> None:
    async with client_of(server) as client:
        ended = await (await client.run(program("fails"))).wait()
        assert isinstance(ended.error, ProgramFailed)
        lines = ended.error.fields["traceback"].splitlines()
        assert lines[-1] == "KeyError: 'missing'"
        assert [line.split(", line ")[1] for line in lines if ", line " in line] == ["12, in main", "7, in inner"]
        assert str(PROGRAMS / "fails.py") in ended.error.fields["traceback"]


async def test_limits_of_a_launch_end_the_program_that_passes_them(server: Serving) -> None:
    cases: list[tuple[Limits, type[tartlet.TartletError]]] = [
        (Limits(pages=2), PageQuotaExceeded),
        (Limits(deadline_s=0.3), DeadlineExceeded),
    ]
    async with client_of(server) as client:
        for limits, error in cases:
            ended = await (await client.run(spec=LaunchSpec(source=program("endless"), limits=limits))).wait()
            assert isinstance(ended.error, error) or error.__name__ in str(ended.error), (
                ended
            )  # the traceback begins in the program
        await until_nothing_is_held(client)


async def test_validate_names_what_is_wrong_without_running_it(server: Serving) -> None:
    async with client_of(server) as client:
        good = program("echo")
        assert await client.validate(good) == good.digest
        with pytest.raises(InvalidSource, match="invalid syntax"):
            await client.validate(Source.python("def main(:"))


async def test_a_source_past_a_messages_size_is_refused_before_it_is_read(tmp_path: Path) -> None:
    huge = tmp_path / "huge.py"
    with huge.open("wb") as f:
        f.truncate(1 << 30)
    with pytest.raises(SourceTooLarge):
        Source.from_file(huge)


async def test_the_catalogue_names_programs(server: Serving) -> None:
    async with client_of(server) as client:
        entry = tartlet.CatalogueEntry("echo", program("echo"), description="echoes")
        assert await client.put([entry]) == [entry.source.digest]
        assert [(e.name, e.description, e.source.data) for e in await client.catalogue()] == [("echo", "echoes", b"")]
        assert (await client.get("echo")).source.data == entry.source.data
        launched = await client.launch(spec=LaunchSpec(inferlet="echo"))
        await client.send(launched.program_id, "stop")
        assert (await (await client.attach(launched.program_id)).wait()).success
        await client.delete("echo")
        with pytest.raises(UnknownInferlet):
            await client.get("echo")


async def test_programs_are_as_durable_as_their_launch_says_or_else_their_entry(server: Serving) -> None:
    async with client_of(server) as client:
        await client.put([tartlet.CatalogueEntry("fails", program("fails"), durability="off")])
        (listed,) = [e for e in await client.catalogue() if e.name == "fails"]
        assert listed.durability == "off"
        for durability, is_kept in (("", False), ("degrade", True), ("on", True)):
            launched = await client.launch(spec=LaunchSpec(inferlet="fails", durability=durability))
            assert not (await (await client.attach(launched.program_id)).wait()).success
            assert (server.run_dir / "journals" / f"{launched.program_id}.journal").exists() is is_kept
        await client.delete("fails")


async def test_what_is_unknown_is_a_typed_error(server: Serving) -> None:
    async with client_of(server) as client:
        for call in (client.send("nobody", "x"), client.kill("nobody")):
            with pytest.raises(UnknownProgram):
                await call
        with pytest.raises(UnknownProgram):
            await (await client.attach("nobody")).wait()


def test_the_blocking_client_does_the_same(server: Serving) -> None:
    with tartlet.Client(server.address) as client:
        run = client.run(Source.python("import inferlet\ndef main():\n    inferlet.send('hi')\n    return 'bye'"))
        assert [e.text for e in run if isinstance(e, tartlet.Message)] == ["hi"]
        assert run.ended is not None
        assert run.ended.result == "bye"
        assert client.state().control_connected
        assert client.launch(program("echo")).program_id in [info.program_id for info in client.list()]
        for info in client.list():
            client.kill(info.program_id)


def test_closing_the_blocking_client_ends_what_other_threads_wait_for(server: Serving) -> None:
    client, ends = tartlet.Client(server.address), queue.SimpleQueue[str]()

    def use(work: Callable[[], object]) -> None:
        try:
            while True:
                work()
        except Exception as e:  # noqa: BLE001 - what it is is what the test looks at
            ends.put(type(e).__name__)

    waiting = [client.run(program("echo")) for _ in range(4)]
    works: list[Callable[[], object]] = [*(run.wait for run in waiting), *[client.list] * 4]
    threads = [threading.Thread(target=use, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    client.close()
    for thread in threads:
        thread.join(10)
    assert [ends.get_nowait() for _ in threads] == ["Disconnected"] * len(threads)


async def test_control_shows_how_many_of_the_tokens_that_a_program_expects_are_left(server: Serving) -> None:
    async with client_of(server) as client:
        run = await client.launch(program("expects"), ["100", "12"])
        events = await client.attach(run.program_id)
        await message(events)
        [row] = (await client.state()).control["programs"]
        # the last token is sampled and not computed; run-ahead may have computed some that nobody reads
        assert row["expected_tokens"] == 100 - row["computed_tokens"]
        assert 4 + 11 <= row["computed_tokens"] < 100
        await client.send(run.program_id, "go on")
        async for event in events:
            if isinstance(event, tartlet.Ended):
                assert event.success


async def test_state_tells_models_and_engines(server: Serving) -> None:
    async with client_of(server) as client:
        state = await client.state()
        assert [m["name"] for m in state.control["models"]] == ["fake"]
        assert [e["state"] for e in state.control["engines"]] == ["ready"]
        assert Language.PYTHON.value == "python"
