"""Programs send HTTP requests: sandboxed, native and from their journals, against a real server."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

from tartlet import Capabilities, CatalogueEntry, LaunchSpec, Source
from tartlet_runtime.wasm import HostConfig, WasmHost
from tests.e2e.answers.test_replay import replay
from tests.e2e.serving import client_of, environment, output, serving
from tests.runtime.web.servers import Heard, Server, answer
from tests.runtime.web.servers import serving as serving_http

FETCHES = Path(__file__).parent / "fetches.py"
HOSTS = Capabilities(http=("127.0.0.1",))
EXPECTED = [
    *(200, True, 3_000_000, sum(i % 251 for i in range(3_000_000)), "application/octet-stream"),
    *("POST /echo", True, "/put", "PUT /put", "data: 0", "data: 1", "data: 2", True, True, "timed out"),
    *("NotAllowed", "RequestFailed", "InvalidArgument"),
]


async def answered(server: Server, heard: Heard, writer: asyncio.StreamWriter) -> None:
    """Answer without waiting for the test, except where the path says so."""
    if heard.target == "/never":
        await asyncio.Event().wait()
    server.go_on.set()
    await answer(server, heard, writer)


async def test_every_call_works_and_runs_again_from_its_journal_with_the_server_gone(run_dir: Path) -> None:
    with serving(run_dir, "--allow-http", "127.0.0.1", TARTLET_RUNTIME_KEEP_JOURNALS="true") as server:
        async with client_of(server) as client:
            async with serving_http(answered) as web:
                spec = LaunchSpec(source=Source.from_file(FETCHES), args=["calls", web.url], capabilities=HOSTS)
                accepted = await client.launch(spec=spec)
                run = await client.attach(accepted.program_id)
                async for _ in run:
                    pass
                asked = len(web.heard)
            assert run.ended is not None
            assert run.ended.success, run.ended.error
            assert json.loads(run.ended.result or "") == EXPECTED
    with WasmHost(HostConfig(max_guests=2)) as wasm:
        again = replay(wasm, run_dir / "journals" / f"{accepted.program_id}.journal")
    assert (again.ended, again.error, again.text) == (True, None, run.ended.result)
    assert asked == len(web.heard)


async def test_the_command_line_names_hosts_and_a_native_program_asks_them_too(run_dir: Path) -> None:
    async with serving_http(answered) as web:

        async def run(*flags: str) -> tuple[int, str, str]:
            command = [sys.executable, "-m", "tartlet_cli", "run", "--engine", "fake", "--quiet", *flags, str(FETCHES)]
            process = await asyncio.create_subprocess_exec(
                *command, "calls", web.url, env=environment(run_dir), stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            async with asyncio.timeout(90):
                out, err = await process.communicate()
            return process.returncode or 0, out.decode(), err.decode()

        code, out, err = await run("--native", "--allow-http", f"127.0.0.1:{web.port}")
        assert code == 0, err
        assert json.loads(out.splitlines()[-1]) == EXPECTED
        code, out, err = await run()
        assert code != 0
        assert "NotAllowed" in err
        assert "--allow-http" in err


async def test_an_entry_of_the_catalogue_bounds_what_its_launches_get(run_dir: Path) -> None:
    with serving(run_dir, "--allow-http", "127.0.0.1") as server:
        async with client_of(server) as client, serving_http(answered) as web:
            here, elsewhere = HOSTS, Capabilities(http=("example.org",))
            for entry, launch, told in (
                (here, None, "over"),
                (here, HOSTS, "over"),
                (here, elsewhere, "NotAllowed"),
                (elsewhere, HOSTS, "NotAllowed"),
                (Capabilities(), HOSTS, "NotAllowed"),
            ):
                await client.put([CatalogueEntry("a", Source.from_file(FETCHES), capabilities=entry)])
                (kept,) = await client.catalogue()
                assert kept.capabilities == entry
                args = ["lost", web.url, "GET", "x", "{}"]
                _, result = await output(client, LaunchSpec(inferlet="a", args=args, capabilities=launch))
                assert json.loads(result or "")[1] == told, (entry, launch)


async def test_a_server_without_hosts_refuses_what_a_launch_asks_for(run_dir: Path) -> None:
    with serving(run_dir) as server:
        async with client_of(server) as client, serving_http(answered) as web:
            spec = LaunchSpec(source=Source.from_file(FETCHES), args=["lost", web.url, "GET", "x", "{}"])
            for capabilities in (None, HOSTS):
                _, result = await output(client, replace(spec, capabilities=capabilities))
                assert json.loads(result or "") == [0, "NotAllowed"]
            assert web.connections == 0
