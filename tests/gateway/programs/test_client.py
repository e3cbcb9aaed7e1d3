"""`tartlet.Client` and `AsyncClient` over HTTP: the calls, the events and the errors of the clients over gRPC."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

import tartlet
from tartlet_common.errors.registry import (
    Disconnected,
    InvalidArgument,
    InvalidSource,
    PermissionDenied,
    ProgramFailed,
    ProgramKilled,
    Unavailable,
    UnknownInferlet,
    UnknownProgram,
)
from tests.e2e.serving import PROGRAMS
from tests.gateway.conftest import Gateway, free_port
from tests.gateway.processes import OwnGateway, own_gateway
from tests.gateway.programs.test_programs import ECHO, tenants  # noqa: F401 - a fixture

SOURCE = tartlet.Source.python(ECHO, "echo.py")


async def test_events_and_ends_are_those_of_the_client_over_grpc(gateway: Gateway) -> None:
    async with tartlet.AsyncClient(gateway.url) as client:
        program = (await client.launch(SOURCE, ["a"])).program_id
        await client.send_many([(program, "one"), (program, b"two"), (program, "bye")])
        async with tartlet.AsyncClient(gateway.server.address) as other:
            theirs = [event async for event in await other.attach(program)]
        run = await client.attach(program)
        mine = [event async for event in run]
        assert [e.data for e in mine if isinstance(e, tartlet.Message)] == [b"\xff\x00", b"ONE", b"TWO"]
        assert [(type(e), e.offset, getattr(e, "data", None)) for e in mine if not isinstance(e, tartlet.Accepted)] == [
            (type(e), e.offset, getattr(e, "data", None)) for e in theirs if not isinstance(e, tartlet.Accepted)
        ]
        assert run.ended is not None
        assert (run.ended.result, run.ended.success) == ("done", True)
        assert run.ended.usage == theirs[-1].usage  # type: ignore[union-attr]
        rest = [event async for event in await client.attach(program, 3)]
        assert rest == mine[3:]


async def test_errors_are_those_of_the_client_over_grpc(gateway: Gateway) -> None:
    async with tartlet.AsyncClient(gateway.url) as client:
        unknown = "00000000-0000-4000-8000-000000000000"
        with pytest.raises(UnknownProgram):
            await anext(await client.attach(unknown))
        with pytest.raises(UnknownProgram):
            await client.send(unknown, "x")
        with pytest.raises(UnknownProgram):
            await client.kill(unknown)
        with pytest.raises(UnknownInferlet) as missing:
            await client.launch(spec=tartlet.LaunchSpec(inferlet="none-of-this-name"))
        assert missing.value.fields["inferlet"] == "none-of-this-name"
        with pytest.raises(InvalidSource):
            await client.validate(tartlet.Source.python("def main(:"))
        with pytest.raises(InvalidArgument):
            await client.state()
        with pytest.raises(InvalidArgument) as needs_grpc:
            await client.run(spec=tartlet.LaunchSpec(fork=tartlet.Fork(1, program_id=unknown)))
        assert needs_grpc.value.fields["argument"] == "fork"
        run = await client.run(tartlet.Source.python("def main(args):\n    raise ValueError('on purpose')\n"))
        failed = (await run.wait()).error
        assert isinstance(failed, ProgramFailed)
        assert "on purpose" in str(failed)
        running = await client.run(SOURCE)
        await client.kill(running.program_id, "enough")
        assert isinstance((await running.wait()).error, ProgramKilled)
        with pytest.raises(InvalidArgument):
            tartlet.AsyncClient(gateway.server.address, key="tlk_x")
        nowhere = tartlet.AsyncClient(f"http://127.0.0.1:{free_port()}", retry_s=0)
        with pytest.raises(Unavailable):
            await nowhere.list()
        await nowhere.close()


async def test_a_run_ends_with_its_client_and_a_launch_does_not(gateway: Gateway) -> None:
    async with tartlet.AsyncClient(gateway.url) as client:
        run, launched = await client.run(SOURCE), await client.launch(SOURCE)
        event = await anext(run)
        assert isinstance(event, tartlet.Stdout)
        run.cancel()
        with pytest.raises(Disconnected):
            await anext(run)
        deadline = time.monotonic() + 20
        while run.program_id in (running := {info.program_id for info in await client.list()}):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert launched.program_id in running
        await client.send(launched.program_id, "bye")
        assert (await (await client.attach(launched.program_id)).wait()).success
        ended = {info.program_id: info for info in await client.list(ended=True)}
        assert ended[run.program_id].state == "failed"


async def test_a_run_goes_on_behind_its_last_event_when_its_gateway_is_replaced(
    gateway: Gateway, tmp_path: Path
) -> None:
    with own_gateway(gateway, tmp_path) as own:
        port = own.port
        async with tartlet.AsyncClient(own.url) as client:
            program = (await client.launch(SOURCE)).program_id
            run = await client.attach(program)
            await client.send(program, "one")
            while getattr(event := await anext(run), "data", b"") != b"ONE":
                pass
            last = event
            coming = asyncio.ensure_future(anext(run))
            own.process.kill()
            own.process.wait()
            with own_gateway(gateway, tmp_path, port=port):
                await client.send(program, "two")
                event = await coming
                assert isinstance(event, tartlet.Message)
                assert (event.text, event.offset) == ("TWO", last.offset + 1)  # type: ignore[union-attr]
                await client.send(program, "bye")
                assert (await run.wait()).success


def test_the_blocking_client_keeps_the_catalogue(gateway: Gateway, repo: Path) -> None:
    module = tartlet.Source.from_file(repo / "inferlets/sdk/c/examples/send_and_exit.wasm")
    several = tartlet.Source.from_file(PROGRAMS / "several")
    with tartlet.Client(f"{gateway.url}/v1") as client:
        entries = [
            tartlet.CatalogueEntry("by-http", SOURCE, description="x"),
            tartlet.CatalogueEntry("by-wasm", module),
            tartlet.CatalogueEntry("several-files", several),
        ]
        assert client.put(entries) == [SOURCE.digest, module.digest, several.digest]
        assert client.get("several-files").source == several
        assert client.get("by-http").source.data == SOURCE.data
        assert client.get("by-wasm").source.language is tartlet.Language.WASM
        assert {"by-http", "by-wasm"} <= {entry.name for entry in client.catalogue()}
        run = client.run(spec=tartlet.LaunchSpec(inferlet="by-wasm", seed=7, session="s", ends_session=True))
        assert [type(e) for e in run][-1] is tartlet.Ended
        keyed = tartlet.LaunchSpec(source=SOURCE, idempotency_key="by-http")
        assert client.launch(spec=keyed) == client.launch(spec=keyed)
        client.end_session("s")
        for name in ("by-http", "by-wasm", "several-files"):
            client.delete(name)


def test_a_key_names_the_tenant(tenants: tuple[OwnGateway, str, str]) -> None:  # noqa: F811
    own, *keys = tenants
    with tartlet.Client(own.url, key=keys[0]) as one, tartlet.Client(own.url, key=keys[1]) as other:
        program = one.launch(SOURCE).program_id
        assert program in {info.program_id for info in one.list()}
        with pytest.raises(UnknownProgram):
            other.send(program, "bye")
        one.kill(program)
    with tartlet.Client(own.url, key="tlk_wrong") as nobody, pytest.raises(PermissionDenied):
        nobody.list()
