"""Bad programs and bad clients, over real processes: each gets a typed error, and all others go on."""

from __future__ import annotations

import os
import socket

import pytest

from tartlet import LaunchSpec, Limits, Source
from tartlet_common.errors.registry import (
    JournalFull,
    ProgramFailed,
    TartletError,
    UnknownModel,
    UnknownProgram,
)
from tartlet_runtime.journal.records import MAGIC
from tests.e2e.serving import Serving, client_of, message, program, until_nothing_is_held

CASES: dict[str, tuple[str, Limits, type[TartletError]]] = {
    "endless recursion": ("def f():\n    return f()\ndef main():\n    f()\n", Limits(), ProgramFailed),
    "journal past its size": (
        "import inferlet\nasync def main():\n    while True:\n        await inferlet.tokenize('x' * 1000)\n",
        Limits(journal_bytes=1 << 16),
        JournalFull,
    ),
    "wrong arguments": ("import argparse\nargparse.ArgumentParser().parse_args(['--what'])\n", Limits(), ProgramFailed),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_bad_program_ends_in_its_typed_error(server: Serving, case: str) -> None:
    text, limits, error = CASES[case]
    async with client_of(server) as client:
        bystander = await client.run(program("echo"))
        events = aiter(bystander)
        assert await message(events) == "ready\n"
        ended = await (await client.run(spec=LaunchSpec(source=Source.python(text), limits=limits))).wait()
        assert isinstance(ended.error, error), ended
        await client.send(bystander.program_id, "still there?")
        assert await message(events) == "echo still there?\n"
        bystander.cancel()
        await until_nothing_is_held(client)


async def test_a_temperature_past_its_bounds_is_told_them(server: Serving) -> None:
    text = """
import inferlet

async def main():
    async with inferlet.Context() as ctx:
        ctx.fill("x")
        async for _ in ctx.generate(max_tokens=1, sampler=inferlet.Temperature(1e7)):
            pass
"""
    async with client_of(server) as client:
        ended = await (await client.run(spec=LaunchSpec(source=Source.python(text)))).wait()
    assert isinstance(ended.error, ProgramFailed), ended
    assert "InvalidArgument" in ended.error.fields["traceback"]
    assert "temperature" in ended.error.fields["traceback"]


async def test_an_unknown_model_names_those_there_are(server: Serving) -> None:
    async with client_of(server) as client:
        with pytest.raises(UnknownModel) as refused:
            await client.run(spec=LaunchSpec(source=program("holder"), model="gpt-x"))
    assert refused.value.fields["model"] == "gpt-x"
    assert "fake" in refused.value.fields["available"]


async def test_each_of_many_messages_to_nobody_is_refused_by_name(server: Serving) -> None:
    async with client_of(server) as client:
        answers = await client.send_many([(f"nobody-{n}", b"x") for n in range(60_000)])
        assert [a.fields["program"] for a in answers if isinstance(a, UnknownProgram)] == [
            f"nobody-{n}" for n in range(60_000)
        ]
        assert await client.send_many([]) == []


async def test_bytes_that_are_no_grpc_are_no_harm(server: Serving) -> None:
    for name in ("runtime.sock", "control.sock", "guest.sock"):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(str(server.run_dir / name))
            raw.sendall(os.urandom(4096))
            raw.settimeout(2)
            try:
                while raw.recv(4096):
                    pass
            except OSError:
                pass
    async with client_of(server) as client:
        run = await client.run(program("echo"))
        assert await message(aiter(run)) == "ready\n"
        run.cancel()


async def test_a_failed_programs_journal_is_kept_and_a_good_ones_is_removed(server: Serving) -> None:
    journals = server.run_dir / "journals"
    async with client_of(server) as client:
        good = await client.run(program("sampled"), ["a", "0", "0", "1", "1"])
        assert (await good.wait()).success
        bad = await client.run(program("fails"))
        assert isinstance((await bad.wait()).error, ProgramFailed)
    kept = {path.stem: path.read_bytes() for path in journals.glob("*.journal")}
    assert good.program_id not in kept
    assert kept[bad.program_id].startswith(MAGIC)
