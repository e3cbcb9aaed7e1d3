"""A server's standard error that nobody reads: it goes on, says what it left out, and ends when told to."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import tartlet
from tartlet._child import _line
from tartlet_cli.console.error_output import ErrorOutput
from tartlet_common.errors.registry import TartletError
from tests.e2e.serving import command, environment, program


@pytest.fixture
def full() -> Iterator[tuple[int, int]]:
    """The two ends of a pipe that has no room."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"\n" * 4096)
    os.set_blocking(writer, True)
    yield reader, writer
    for end in (reader, writer):
        with contextlib.suppress(OSError):
            os.close(end)


@pytest.mark.parametrize("blocking", [True, False])
def test_lines_that_nobody_reads_are_left_out_and_counted(full: tuple[int, int], *, blocking: bool) -> None:
    reader, writer = full
    os.set_blocking(writer, blocking)
    output = ErrorOutput(writer, "see the logs", limit_bytes=100)
    for n in range(1000):
        output.write(f"line {n:04}\n")
    output.close(0.0)  # it doesn't wait for the reader
    shown = b""
    while not shown.endswith(b"logs]\n"):
        shown += os.read(reader, 1 << 16)
    output.close(10.0)
    kept = [f"line {n:04}" for n in range(10)]
    *lines, note = shown.decode().lstrip().splitlines()
    assert lines == kept
    assert note.startswith("[990 lines left out")


def test_a_pipe_that_is_gone_takes_nobody_with_it() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    output = ErrorOutput(writer, "")
    for _ in range(3):
        output.write("a line\n")
    output.close(10.0)
    output.write("another\n")
    os.close(writer)


async def test_a_very_long_line_is_cut_and_the_next_one_is_whole() -> None:
    stream = asyncio.StreamReader(limit=1 << 16)
    stream.feed_data(b"short\n" + b"x" * 200_000 + b"\nnext\nlast")
    stream.feed_eof()
    lines = [await _line(stream) for _ in range(5)]
    assert lines == [b"short\n", b"x" * 8192 + b"... (200001 bytes in all)\n", b"next\n", b"last", b""]


async def test_a_server_whose_standard_error_nobody_reads_serves_and_ends(run_dir: Path, full: tuple[int, int]) -> None:
    _, writer = full
    serve = await asyncio.create_subprocess_exec(
        *command("serve", "--engine", "fake"), env=environment(run_dir), stderr=writer
    )
    try:
        async with asyncio.timeout(60), tartlet.AsyncClient(f"unix:{run_dir}/runtime.sock") as client:
            ended = None
            while ended is None or not ended.success:
                with contextlib.suppress(TartletError):  # it isn't there yet
                    ended = await (await client.run(program("sampled"), ["hello", "0", "0", "1", "1"])).wait()
                await asyncio.sleep(0.1)
        serve.send_signal(signal.SIGINT)
        async with asyncio.timeout(20):
            assert await serve.wait() == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            serve.kill()
        await serve.wait()
