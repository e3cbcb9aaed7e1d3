"""Forks of recorded runs: they begin as these did, and go on live with other sources, arguments or answers."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import tartlet
from tartlet import Capabilities, Fork, LaunchSpec, Source
from tartlet_common.abi import HEADER_BYTES, HEADER_STRUCT, RECORD_BYTES, RECORD_STRUCT, Event, Record
from tartlet_common.errors.registry import (
    Diverged,
    InvalidArgument,
    InvalidSource,
    NotForkable,
    PermissionDenied,
    UnknownProgram,
)
from tartlet_runtime.journal.records import RECORD_BYTES as RECORD_OVERHEAD
from tartlet_runtime.journal.records import Kind, crc_of, encode_record, parse_journal, read_journal
from tests.e2e.serving import Serving, client_of, message, out, program, serving, until_nothing_is_held
from tests.run_directory import run_directory

ROUNDS = 4
AGENT = program("tools/agent")
TOKENS = 20
PROMPT = "a prompt that fills more than one page of the engine's memory, "
TALKS = """
from inferlet import Context, receive, send
async def main(args):
    async with Context(seed=3) as ctx:
        ctx.fill("%s")
        first = await ctx.generate_until(max_tokens=20, eos=False)
        send(first)
        ctx.fill(await receive())
        return args[0] + await ctx.generate_until(max_tokens=20, eos=False)
""".replace("%s", PROMPT)
FILLS = """
from inferlet import Context
async def main(args):
    async with Context(seed=3) as ctx:
        ctx.fill(args[0])
        return await ctx.generate_until(max_tokens=20, eos=False)
"""

TELLS = """
import asyncio
from inferlet import broadcast, errors, receive, send
async def main():
    await asyncio.sleep(0.01)
    send("ready")
    await receive()
    try:
        await broadcast("jobs", b"x")
    except errors.NotAllowed:
        return "refused"
"""


@pytest.fixture(scope="module")
def keeping() -> Iterator[Serving]:
    with run_directory() as directory, serving(directory, TARTLET_RUNTIME_KEEP_JOURNALS="true") as running:
        yield running


@dataclass
class Heard:
    """What a client heard of a run."""

    program_id: str
    said: list[str]
    result: str | None


async def talked(client: tartlet.AsyncClient, spec: LaunchSpec, answered: int = 0) -> Heard:
    """Runs an agent; answers its calls from number `answered` on."""
    run = await client.run(spec=spec)
    said = []
    async for event in run:
        if isinstance(event, tartlet.Message | tartlet.Stdout):
            said.append(event.text)
        if isinstance(event, tartlet.Message) and event.text.startswith("call "):
            number = int(event.text.split()[1])
            if number >= answered:
                await client.send(run.program_id, f"answer {number}")
    assert run.ended is not None
    if run.ended.error is not None:
        raise run.ended.error
    return Heard(run.program_id, said, run.ended.result)


def received_before(journal: Path, deliveries: int) -> int:
    """Returns how many messages came before the end of a delivery."""
    told = messages = 0
    for record in read_journal(journal)[1]:
        if told == deliveries:
            break
        told += record.kind == Kind.DELIVERY
        messages += record.kind == Kind.MESSAGE
    return messages


async def test_a_fork_at_any_delivery_ends_as_the_recorded_run(keeping: Serving) -> None:
    async with client_of(keeping) as client:
        spec = LaunchSpec(source=AGENT, args=[str(ROUNDS)], seed=bytes(16))
        recorded = await talked(client, spec)
        journal = keeping.run_dir / "journals" / f"{recorded.program_id}.journal"
        total = sum(record.kind == Kind.DELIVERY for record in read_journal(journal)[1])
        assert total > 20
        for deliveries in [1, 2, *range(5, total, 7), total - 1, total]:
            fork = LaunchSpec(fork=Fork(deliveries, program_id=recorded.program_id))
            heard = await talked(client, fork, answered=received_before(journal, deliveries))
            assert heard.program_id != recorded.program_id
            assert (heard.said, heard.result) == (recorded.said, recorded.result), deliveries
        await until_nothing_is_held(client)


def tampered(data: bytes, change: Callable[[Record], Record]) -> tuple[bytes, int]:
    """Returns a journal in which the tenth token that the program was told is changed, and its last token's place.

    The place counts deliveries. What the program submits doesn't depend on the token until it has all of them.
    """
    parsed = parse_journal(data, "recorded")
    changed, sampled, last = data[: parsed.header_bytes], 0, 0
    deliveries = 0
    for record in parsed.records:
        delivery = bytearray(record.delivery)
        deliveries += record.kind == Kind.DELIVERY
        if record.kind == Kind.DELIVERY:
            end = HEADER_BYTES + HEADER_STRUCT.unpack_from(delivery)[2] * RECORD_BYTES
            for at in range(HEADER_BYTES, end, RECORD_BYTES):
                row = Record._make(RECORD_STRUCT.unpack_from(delivery, at))
                if row.op == Event.RESULT and row.queue and sampled < TOKENS and not row.length:
                    sampled += 1
                    if sampled == TOKENS // 2:
                        RECORD_STRUCT.pack_into(delivery, at, *change(row))
                    last = deliveries
        told = (record.digest, bytes(delivery), record.from_control, record.read_to, record.kind)
        changed += encode_record(crc_of(data[: parsed.header_bytes]), record.clock_ns, *told)
    return changed, last


async def test_a_fork_goes_on_behind_the_tokens_that_were_recorded(keeping: Serving) -> None:
    """The journal holds another token than the engine would sample, as that of another engine does."""
    async with client_of(keeping) as client:
        run = await client.run(spec=LaunchSpec(source=Source.python(TALKS), args=["then "]))
        first = await message(run)
        await client.send(run.program_id, "and more")
        async for _ in run:
            pass
        data = (keeping.run_dir / "journals" / f"{run.program_id}.journal").read_bytes()
        journal, deliveries = tampered(data, lambda row: row._replace(a=ord("Z")))
        fork = await client.run(spec=LaunchSpec(args=["now "], fork=Fork(deliveries, journal=journal)))
        said = await message(fork)
        assert said == first[: TOKENS // 2 - 1] + "Z" + first[TOKENS // 2 :]
        await client.send(fork.program_id, "and more")
        result = await result_of(fork)
        fresh = await client.run(spec=LaunchSpec(source=Source.python(FILLS), args=[PROMPT + said + "and more"]))
        assert result == "now " + await result_of(fresh)
        assert run.ended is not None
        assert result.removeprefix("now ") != str(run.ended.result).removeprefix("then ")
        await until_nothing_is_held(client)


async def test_a_journal_that_makes_no_sense_costs_nobody_but_its_fork(keeping: Serving) -> None:
    async with client_of(keeping) as client:
        run = await client.run(spec=LaunchSpec(source=Source.python(TALKS), args=["then "]))
        bystander = await client.run(spec=LaunchSpec(source=Source.python(TALKS), args=["then "]))
        await message(run)
        await message(bystander)
        await client.send(run.program_id, "and more")
        result = await result_of(run)
        data = (keeping.run_dir / "journals" / f"{run.program_id}.journal").read_bytes()
        outside, deliveries = tampered(data, lambda row: row._replace(offset=1 << 20, length=4))
        body = data[: parse_journal(data, "recorded").header_bytes - 4].replace(b'"seed"', b'"need"', 1)
        headless = body + zlib.crc32(body).to_bytes(4, "little")
        for journal in (outside, headless):
            with pytest.raises(InvalidSource):
                await client.run(spec=LaunchSpec(fork=Fork(deliveries, journal=journal)))
        await client.send(bystander.program_id, "and more")
        assert await result_of(bystander) == result
        await until_nothing_is_held(client)


def with_model(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Returns a journal whose program was told of another model; `change` keeps the length."""
    parsed = parse_journal(data, "recorded")
    changed = data[: parsed.header_bytes]
    for record in parsed.records:
        told = (record.digest, change(record.delivery), record.from_control, record.read_to, record.kind)
        changed += encode_record(crc_of(data[: parsed.header_bytes]), record.clock_ns, *told)
    return changed


async def test_a_fork_names_the_model_that_is_not_there(keeping: Serving) -> None:
    source = Source.python("from inferlet import get_model\nasync def main(args):\n    return (await get_model()).name")
    async with client_of(keeping) as client:
        run = await client.run(spec=LaunchSpec(source=source))
        name = await result_of(run)
        data = (keeping.run_dir / "journals" / f"{run.program_id}.journal").read_bytes()
        others = (
            with_model(data, lambda told: told.replace(b'"index":0', b'"index":9')),
            with_model(data, lambda told: told.replace(b'"name":"fake"', b'"name":"fuke"')),
        )
        for journal, missing in zip(others, (name, "fuke"), strict=True):
            assert journal != data
            with pytest.raises(NotForkable, match=missing):
                await client.run(spec=LaunchSpec(fork=Fork(1, journal=journal)))
        await until_nothing_is_held(client)


async def result_of(run: tartlet.Run) -> str:
    async for _ in run:
        pass
    assert run.ended is not None
    assert run.ended.success, run.ended.error
    return str(run.ended.result)


async def test_an_edited_program_must_give_the_recorded_commands_up_to_the_fork(keeping: Serving) -> None:
    async with client_of(keeping) as client:
        run = await client.run(spec=LaunchSpec(source=Source.python(TALKS), args=["then "]))
        await message(run)
        await client.send(run.program_id, "and more")
        recorded = await result_of(run)
        journal = keeping.run_dir / "journals" / f"{run.program_id}.journal"
        total = sum(record.kind == Kind.DELIVERY for record in read_journal(journal)[1])
        of = run.program_id

        longer = Source.python(TALKS.replace("return args[0] +", "return 'edited ' +"))
        edited = await client.run(spec=LaunchSpec(source=longer, fork=Fork(total, program_id=of)))
        assert await result_of(edited) == "edited " + recorded.removeprefix("then ")

        other = Source.python(TALKS.replace("send(first)", "send('first: ' + first)"))
        with pytest.raises(Diverged) as diverged:
            await client.run(spec=LaunchSpec(source=other, fork=Fork(total, program_id=of)))
        assert 1 < diverged.value.fields["wait"] <= total
        assert "first: " in str(diverged.value.fields["detail"])

        short = Source.python("async def main(args):\n    return 'at once'")
        with pytest.raises(Diverged):
            await client.run(spec=LaunchSpec(source=short, fork=Fork(total, program_id=of)))
        with pytest.raises(InvalidArgument):
            await client.run(spec=LaunchSpec(fork=Fork(total + 1, program_id=of)))
        with pytest.raises(UnknownProgram):
            await client.run(spec=LaunchSpec(fork=Fork(1, program_id=of[:-4] + "0000")))
        async with tartlet.AsyncClient(keeping.address, tenant="another") as stranger:
            with pytest.raises(UnknownProgram):
                await stranger.run(spec=LaunchSpec(fork=Fork(1, program_id=of)))
        await until_nothing_is_held(client)


async def test_a_fork_may_use_no_more_than_the_recorded_run(keeping: Serving) -> None:
    async with client_of(keeping) as client:
        may = Capabilities(topics=["log"])
        run = await client.run(spec=LaunchSpec(source=Source.python(TELLS), capabilities=may))
        await message(run)
        await client.send(run.program_id, "go")
        assert await result_of(run) == "refused"
        of = run.program_id
        for _ in range(2):  # a fork's own journal has the grants, too
            fork = await client.run(
                spec=LaunchSpec(fork=Fork(1, program_id=of), capabilities=Capabilities(topics=["*"]))
            )
            await message(fork)
            await client.send(fork.program_id, "go")
            assert await result_of(fork) == "refused"
            of = fork.program_id


async def test_a_context_that_is_not_plain_cannot_be_forked(keeping: Serving) -> None:
    masked = TALKS.replace(
        "send(first)", "ctx.mask(range(2, 9))\n        ctx.fill('x')\n        await ctx.flush()\n        send(first)"
    )
    async with client_of(keeping) as client:
        run = await client.run(spec=LaunchSpec(source=Source.python(masked), args=[""]))
        await message(run)
        await client.send(run.program_id, "and more")
        await result_of(run)
        kinds = [r.kind for r in read_journal(keeping.run_dir / "journals" / f"{run.program_id}.journal")[1]]
        before = kinds[: kinds.index(Kind.MESSAGE)].count(Kind.DELIVERY)  # while the context is there
        fork = await client.run(spec=LaunchSpec(fork=Fork(before, program_id=run.program_id)))
        async for _ in fork:
            pass
        assert fork.ended is not None
        assert isinstance(fork.ended.error, NotForkable)
        await until_nothing_is_held(client)


async def test_a_fork_outlives_the_processes_that_it_lives_in() -> None:
    with run_directory() as directory, serving(directory, TARTLET_RUNTIME_KEEP_JOURNALS="true") as server:
        async with client_of(server) as client:
            run = await client.run(spec=LaunchSpec(source=Source.python(TALKS), args=["1 "]))
            await message(run)
            await client.send(run.program_id, "and more")
            recorded = await result_of(run)
            for role in ("runtime", "control", "worker"):
                launched = await client.launch(spec=LaunchSpec(fork=Fork(3, program_id=run.program_id)))
                fork = await client.attach(launched.program_id)
                await message(fork)
                server.kill(role)
                server.until(f"{role} serves (pid ", count=2)
                await client.send(launched.program_id, "and more")
                assert await result_of(fork) == recorded, role
            await until_nothing_is_held(client)


async def test_a_journal_travels_through_servers(keeping: Serving, tmp_path: Path) -> None:
    """It is exported from one, imported into another one that has never seen the run, and forked there."""
    async with client_of(keeping) as client:
        run = await client.run(spec=LaunchSpec(source=Source.python(TALKS), args=["then "], tenant="a"))
        await message(run)
        await client.send(run.program_id, "and more")
        recorded = await result_of(run)
        exported = tmp_path / "run.journal"
        out(keeping.run_dir, "journals", "export", "--server", keeping.address, run.program_id[:8], str(exported))
        assert exported.stat().st_mode & 0o777 == 0o600
        async with tartlet.AsyncClient(keeping.address, tenant="b") as stranger:
            with pytest.raises(UnknownProgram):
                await stranger.export_journal(run.program_id)
    with run_directory() as directory, serving(directory) as other:
        async with client_of(other) as client, tartlet.AsyncClient(other.address, tenant="b") as stranger:
            data = exported.read_bytes()
            with pytest.raises(PermissionDenied):
                await stranger.import_journal(data)
            with pytest.raises(InvalidSource):
                await client.import_journal(data[:-1])
            records = parse_journal(data, "run").records
            with pytest.raises(InvalidArgument):  # a runtime would begin it again
                await client.import_journal(data[: -RECORD_OVERHEAD - len(records[-1].delivery)])
            for _ in range(2):
                out(other.run_dir, "journals", "import", "--server", other.address, str(exported))
            assert await client.export_journal(run.program_id) == data
            deliveries = sum(record.kind == Kind.DELIVERY for record in records)
            fork = await client.run(spec=LaunchSpec(tenant="a", fork=Fork(deliveries, program_id=run.program_id)))
            assert await result_of(fork) == recorded
