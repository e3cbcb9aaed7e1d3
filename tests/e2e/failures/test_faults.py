"""Injects every fault of docs/faults.md into real processes and checks its end, its time limit and bystanders."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import struct
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

import tartlet
from tartlet import LaunchSpec, Limits, Source
from tartlet_common.errors.registry import NoEngine, TartletError
from tests.e2e.cluster import Cluster
from tests.e2e.cutting import nothing_is_lost_while_cut, on_one_machine, round_of
from tests.e2e.faults import (
    Row,
    checkpoint,
    ends_under_a_stepped_clock,
    full,
    is_error,
    named,
    no_file_grows,
    rows,
    stepped_clock,
    thought,
    unaffected,
    with_a_disk_of_its_own,
    without_its_client,
)
from tests.e2e.serving import (
    Serving,
    client_of,
    message,
    pools,
    program,
    tartlet_cli,
    until_nothing_is_held,
)

ROWS = {row.id: row for row in rows()}
Injection = Callable[[Serving, tartlet.AsyncClient], Awaitable[TartletError | None]]
INJECTIONS: dict[str, Injection] = {}


def injects(fault: str) -> Callable[[Injection], Injection]:
    """Registers the function that injects a fault; it returns the error of the affected program, None for no effect."""

    def add(injection: Injection) -> Injection:
        INJECTIONS[fault] = injection
        return injection

    return add


def test_the_table_and_the_injections_name_the_same_faults() -> None:
    assert len(ROWS) >= 20
    assert set(INJECTIONS) == set(ROWS)


@pytest.mark.filterwarnings("default:no small disk")
@pytest.mark.parametrize("fault", sorted(ROWS))
async def test_a_fault_ends_as_the_table_says(server: Serving, fault: str) -> None:
    row = ROWS[fault]
    with contextlib.ExitStack() as stack:
        if fault == "disk-full":
            server = stack.enter_context(with_a_disk_of_its_own(server))
        await ends_as_its_row_says(server, row)


async def ends_as_its_row_says(server: Serving, row: Row) -> None:
    """Injects one fault, and checks how it ends and what it leaves."""
    fault = row.id
    async with client_of(server) as client:
        async with bystander(client):
            start = time.monotonic()
            error = await INJECTIONS[fault](server, client)
            took_s = time.monotonic() - start
            await until_a_launch_succeeds(client, row, start)
        if row.ends_as is None:
            assert error is None, error
        else:
            assert is_error(error, row.ends_as), f"{type(error)} {error}"
        assert took_s < row.within_s
        await until_nothing_is_held(client)


@contextlib.asynccontextmanager
async def bystander(client: tartlet.AsyncClient) -> AsyncIterator[None]:
    """Runs a program that doesn't depend on the broken part and must survive."""
    run = await client.run(program("echo"))
    events = aiter(run)
    assert await message(events) == "ready\n"
    yield
    await client.send(run.program_id, "there?")
    assert await message(events) == "echo there?\n"
    await client.send(run.program_id, "stop")
    assert (await run.wait()).success


async def until_a_launch_succeeds(client: tartlet.AsyncClient, row: Row, start: float) -> None:
    """Checks that a new program that needs every role succeeds within the row's limit; 0 means at once."""
    while True:
        try:
            ended = await (await client.run(program("sampled"), ["a", "0", "0", "1", "1"])).wait()
        except TartletError as e:
            error: TartletError | None = e
        else:
            if ended.success:
                break
            error = ended.error
        assert error is not None
        assert error.retryable or is_error(error, NoEngine), error
        assert time.monotonic() - start < row.again_s, error
        await asyncio.sleep(0.05)


async def ends_as(
    client: tartlet.AsyncClient, text: str, *args: str, limits: Limits | None = None
) -> TartletError | None:
    """Returns the error in which a Python program ends."""
    spec = LaunchSpec(source=Source.python(text), args=args, limits=limits or Limits())
    return (await (await client.run(spec=spec)).wait()).error


async def serve_elsewhere(server: Serving, *flags: str) -> TartletError | None:
    """Returns the error in which a `tartlet serve` in another directory ends."""
    directory = server.run_dir / "elsewhere"
    result = await asyncio.to_thread(tartlet_cli, directory, "serve", *flags)
    assert result.returncode == 3, result.stderr
    return named(result.stderr)


# ---- programs -------------------------------------------------------------------------------------------------------


@injects("syntax-error")
async def _(server: Serving, client: tartlet.AsyncClient) -> TartletError | None:
    return await ends_as(client, "def main(:\n")


@injects("endless-loop")
async def _(server: Serving, client: tartlet.AsyncClient) -> TartletError | None:
    limits = Limits(cpu_slice_s=1.0)  # processor time: on a busy machine the default of 5 s takes long
    return await ends_as(client, "def main():\n    while True:\n        pass\n", limits=limits)


@injects("memory-hog")
async def _(server: Serving, client: tartlet.AsyncClient) -> TartletError | None:
    return await ends_as(
        client, "def main():\n    kept = []\n    while True:\n        kept.append(bytearray(1 << 20))\n"
    )


@injects("unknown-call")
async def _(server: Serving, client: tartlet.AsyncClient) -> TartletError | None:
    header = struct.pack("<HHIII", 1, 0, 1, 0, 0)
    record = struct.pack("<HHIIIIIII", 999, 1, 1, 0, 0, 0, 0, 0, 0)
    text = f"""
import inferlet._wire.host as h
def main():
    h.backend.submit({header + record!r})
    h.backend.wait(1, 10**6)
"""
    return await ends_as(client, text)


@injects("freed-page")
async def _(server: Serving, client: tartlet.AsyncClient) -> TartletError | None:
    text = """
import inferlet
async def main():
    pages = inferlet.alloc_kvpage(1)
    inferlet.dealloc_kvpage(pages)
    inferlet.mask_kvpage(pages[0], [True])
    await inferlet.synchronize()
"""
    return await ends_as(client, text)


@injects("quota-exceeded")
async def _(server: Serving, client: tartlet.AsyncClient) -> TartletError | None:
    run = await client.run(spec=LaunchSpec(source=program("endless"), limits=Limits(pages=2)))
    return (await run.wait()).error


@injects("huge-upload")
async def _(server: Serving, client: tartlet.AsyncClient) -> TartletError | None:
    huge = server.run_dir / "huge.py"
    with huge.open("wb") as f:
        f.truncate(1 << 30)
    result = await asyncio.to_thread(tartlet_cli, server.run_dir, "launch", str(huge))
    huge.unlink()
    assert result.returncode == 1
    return named(result.stderr)


@injects("corrupt-wasm")
async def _(server: Serving, client: tartlet.AsyncClient) -> TartletError | None:
    source = Source(b"\0asm\1\0\0\0" + os.urandom(1000), tartlet.Language.WASM, "damaged.wasm")
    with pytest.raises(TartletError) as caught:
        await client.run(source)
    return caught.value


# ---- starting -------------------------------------------------------------------------------------------------------


@injects("missing-checkpoint")
async def _(server: Serving, client: tartlet.AsyncClient) -> TartletError | None:
    return await serve_elsewhere(server, "--model", str(server.run_dir / "nowhere"))


@injects("broken-checkpoint")
async def _(server: Serving, client: tartlet.AsyncClient) -> TartletError | None:
    return await serve_elsewhere(server, "--model", str(checkpoint(server.run_dir / "broken")))


@injects("unknown-family")
async def _(server: Serving, client: tartlet.AsyncClient) -> TartletError | None:
    return await serve_elsewhere(server, "--model", str(checkpoint(server.run_dir / "unknown", model_type="gpt_neox")))


@injects("port-in-use")
async def _(server: Serving, client: tartlet.AsyncClient) -> TartletError | None:
    directory = server.run_dir / "taken"
    directory.mkdir()
    tls = Cluster(directory).identity("control", "localhost")
    files = ["--tls-certificate", tls.certificate, "--tls-key", tls.key, "--tls-authority", tls.authority]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = ["serve", "--role", "control", "--address", address, *map(str, files)]
        result = await asyncio.to_thread(tartlet_cli, directory, *command)
    assert result.returncode != 0
    assert address in result.stderr
    return named(result.stderr)


@injects("directory-in-use")
async def _(server: Serving, client: tartlet.AsyncClient) -> TartletError | None:
    result = await asyncio.to_thread(tartlet_cli, server.run_dir, "serve", "--engine", "fake")
    assert result.returncode == 3
    return named(result.stderr)


# ---- clients --------------------------------------------------------------------------------------------------------


@injects("disconnect")
async def _(server: Serving, client: tartlet.AsyncClient) -> TartletError | None:
    return await without_its_client(server, client, signal.SIGKILL)


@injects("client-leaves")
async def _(server: Serving, client: tartlet.AsyncClient) -> TartletError | None:
    return await without_its_client(server, client, signal.SIGINT)


@injects("slow-reader")
async def _(server: Serving, client: tartlet.AsyncClient) -> TartletError | None:
    text = """
import inferlet
async def main():
    await inferlet.receive()
    for i in range(32):
        inferlet.send(str(i % 10) * 1_000_000)
        inferlet.alloc_kvpage(1)
        await inferlet.synchronize()
"""
    launched = await client.launch(Source.python(text))
    slow = await client.attach(launched.program_id)
    events = aiter(slow)
    await client.send(launched.program_id, "go")
    read = [await message(events)]  # and then no more

    async def sent() -> int:
        """Returns how many messages of 1 MB were sent: the program holds one more page after each."""
        return next(info.pages for info in await client.list() if info.program_id == launched.program_id)

    before = -1
    while before < 8 or before != await sent():
        before = await sent()
        assert (await (await client.run(program("sampled"), ["a", "0", "0", "1", "1"])).wait()).success
        await asyncio.sleep(0.3)
    assert before < 32  # the program stands still at the bound of 8 MiB plus the data on its way to the client
    async for event in events:
        read += [event.text] if isinstance(event, tartlet.Message) else []
    assert read == [str(i % 10) * 1_000_000 for i in range(32)]
    assert slow.ended is not None
    return slow.ended.error


@injects("unread-sends")
async def _(server: Serving, client: tartlet.AsyncClient) -> TartletError | None:
    text = "import inferlet\ndef main():\n    for i in range(100_000):\n        inferlet.send('x' * 100)\n"
    launched = await client.launch(Source.python(text))
    while launched.program_id in [info.program_id for info in await client.list()]:  # noqa: ASYNC110 - there is no event
        await asyncio.sleep(0.05)
    return (await (await client.attach(launched.program_id)).wait()).error


# ---- roles ----------------------------------------------------------------------------------------------------------


@injects("worker-killed")
async def _(server: Serving, client: tartlet.AsyncClient) -> TartletError | None:
    return await unaffected(server, client, kills=2)


@injects("masked-context-lost")
async def _(server: Serving, client: tartlet.AsyncClient) -> TartletError | None:
    found = await thought(server, client, "masked", kills=1, first=1)  # by then the mask holds
    assert isinstance(found, TartletError)
    return found


@injects("control-killed")
async def _(server: Serving, client: tartlet.AsyncClient) -> TartletError | None:
    undisturbed = await thought(server, client)
    found = await thought(server, client, kills=3, role="control")
    assert isinstance(found, TartletError) or found == undisturbed
    return found if isinstance(found, TartletError) else None


@injects("runtime-killed")
async def _(server: Serving, client: tartlet.AsyncClient) -> TartletError | None:
    return await unaffected(server, client, role="runtime", kills=2)


@injects("runtime-stopped")
async def _(server: Serving, client: tartlet.AsyncClient) -> TartletError | None:
    return await unaffected(server, client, role="runtime", kills=2, how=signal.SIGTERM)


# ---- connections ----------------------------------------------------------------------------------------------------


@injects("links-cut")
async def _(server: Serving, client: tartlet.AsyncClient) -> TartletError | None:
    """Runs programs on another server behind a proxy; on one machine, frames have sockets of their own."""
    with tempfile.TemporaryDirectory(prefix="tt-") as made:
        async with on_one_machine(Path(made)) as (other, proxy, theirs):
            assert await nothing_is_lost_while_cut(theirs, proxy, 0.05, 3.0) > 20
            assert other.text().count("serves (pid") == 3  # no role has died
    return None


@injects("control-unreachable")
async def _(server: Serving, client: tartlet.AsyncClient) -> TartletError | None:
    with tempfile.TemporaryDirectory(prefix="tt-") as made:
        async with on_one_machine(Path(made)) as (_, proxy, theirs):
            undisturbed = await round_of(theirs)
            running = asyncio.ensure_future(round_of(theirs))
            await asyncio.sleep(0.1)
            async with proxy.away():
                await asyncio.sleep(5.0)
                assert not running.done()
            assert await running == undisturbed
            await until_nothing_is_held(theirs)
    return None


# ---- the machine ----------------------------------------------------------------------------------------------------


@injects("disk-full")
async def _(server: Serving, client: tartlet.AsyncClient) -> TartletError | None:
    with full(server.small_disk) if server.small_disk else no_file_grows(server.pid("runtime")):
        try:
            return (await (await client.run(program("sampled"), ["a", "0", "0", "1", "1"])).wait()).error
        except TartletError as e:
            return e


@injects("clock-stepped")
async def _(server: Serving, client: tartlet.AsyncClient) -> TartletError | None:
    """Runs another server with a replaced wall clock, and returns its program's error."""
    directory = Path(tempfile.mkdtemp(prefix="tt-"))
    try:
        env, offset = stepped_clock(directory)
        return await asyncio.to_thread(ends_under_a_stepped_clock, directory, env, offset)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def test_nothing_is_left_of_all_that(server: Serving) -> None:
    async def look() -> None:
        async with client_of(server) as client:
            assert [p["held"] for p in await pools(client)] == [0, 0, 0]

    asyncio.run(look())
