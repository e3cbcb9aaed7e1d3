"""Roles over TCP: mutual TLS, probes, and several runtimes, of which clients may ask any."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import tartlet
from tartlet_common.errors import exit_codes
from tartlet_common.errors.registry import (
    Draining,
    InvalidConfig,
    PermissionDenied,
    RuntimeLost,
    SourceTooLarge,
    Unavailable,
    UnknownProgram,
    WorkerLost,
)
from tartlet_runtime.budget.ledger import Use
from tests.e2e.cluster import Cluster, cluster, http_get
from tests.e2e.serving import message, program, tartlet_cli


@pytest.fixture(scope="module")
def pair() -> Iterator[Cluster]:
    """Two runtimes of one control, and a fake worker."""
    with tempfile.TemporaryDirectory(prefix="tt-") as directory, cluster(Path(directory), runtimes=2) as made:
        yield made


def _client(made: Cluster, number: int, identity: str = "client") -> tartlet.AsyncClient:
    return tartlet.AsyncClient(made.runtimes[number], control=made.control, tls=made.identity(identity))


async def test_a_program_runs_over_mutual_tls_and_a_worker_may_not_launch(pair: Cluster) -> None:
    async with asyncio.timeout(60), _client(pair, 0) as client, _client(pair, 0, "worker") as worker:
        run = await client.run(program("sampled"), ["a", "0", "0", "1", "1"])
        assert (await run.wait()).success
        with pytest.raises(PermissionDenied) as refused:
            await worker.launch(program("echo"))
        assert refused.value.fields == {"caller": "worker", "method": "/tartlet.v1.Programs/Launch"}


def test_the_command_line_takes_tls_files_from_flags_and_environment(pair: Cluster) -> None:
    tls = pair.identity("client")
    files = {"certificate": tls.certificate, "key": tls.key, "authority": tls.authority}
    flags = [part for name, path in files.items() for part in (f"--tls-{name}", str(path))]
    variables = {f"TARTLET_CLIENT_TLS_{name.upper()}": str(path) for name, path in files.items()}
    listed = tartlet_cli(pair.directory, "ps", "--server", pair.runtimes[0], *flags)
    assert (listed.returncode, listed.stdout.split()[0]) == (0, "PROGRAM"), listed.stderr
    listed = tartlet_cli(pair.directory, "ps", "--server", pair.runtimes[0], timeout_s=60, **variables)
    assert (listed.returncode, listed.stdout.split()[0]) == (0, "PROGRAM"), listed.stderr
    refused = tartlet_cli(pair.directory, "ps", "--server", pair.runtimes[0])
    assert refused.returncode != 0
    assert "give --tls-certificate" in refused.stderr


async def test_who_shows_a_certificate_of_another_authority_is_told_what_must_fit(pair: Cluster, run_dir: Path) -> None:
    with pytest.raises(Unavailable, match=r"handshake failed.*must be of one authority"):
        await tartlet.AsyncClient(pair.runtimes[0], tls=Cluster(run_dir).identity("client")).list()


async def test_tcp_without_tls_is_refused_by_client_and_role(pair: Cluster, run_dir: Path) -> None:
    with pytest.raises(InvalidConfig):
        await tartlet.AsyncClient(pair.runtimes[0]).list()
    lonely = Cluster(run_dir)
    try:
        for flags in ((), ("--tls-key", str(run_dir / "missing"))):
            role = lonely.start("bare", "control", "--address", lonely.control, *flags)
            assert role.until_ready().startswith(f"error {InvalidConfig.number} ")
            assert role.process.wait(10) == exit_codes.USAGE
    finally:
        lonely.stop()


async def test_calls_about_a_program_may_be_made_at_any_runtime(pair: Cluster) -> None:
    async with asyncio.timeout(60), _client(pair, 0) as owner, _client(pair, 1) as other:
        accepted = await owner.launch(program("echo"))
        run = await other.attach(accepted.program_id)
        events = aiter(run)
        assert await message(events) == "ready\n"
        await other.send(accepted.program_id, "there")
        assert await message(events) == "echo there\n"
        (seen,) = [i for i in await other.list() if i.program_id == accepted.program_id]
        assert (seen.runtime, seen.state) == (pair.runtimes[0], "running")
        await other.send(accepted.program_id, "stop")
        ended = await run.wait()
        assert (ended.success, ended.result) == (True, "answered 1")
        again = await other.attach(accepted.program_id, offset=1)  # the program has ended; its runtime keeps the output
        assert await message(aiter(again)) == "echo there\n"
        killed = await owner.launch(program("waits"))
        await other.kill(killed.program_id, "enough")
        assert not (await (await owner.attach(killed.program_id)).wait()).success


async def test_a_program_that_nobody_has_is_unknown_at_every_runtime(pair: Cluster) -> None:
    nobody = "00000000-0000-4000-8000-000000000000"
    async with asyncio.timeout(60), _client(pair, 1) as client:
        for call in (client.send(nobody, "x"), client.kill(nobody)):
            with pytest.raises(UnknownProgram):
                await call
        run = await client.attach(nobody)
        with pytest.raises(UnknownProgram):
            await run.wait()


async def test_a_key_starts_one_program_whichever_runtime_is_asked(pair: Cluster) -> None:
    spec = tartlet.LaunchSpec(source=program("echo"), idempotency_key="once")
    async with asyncio.timeout(60), _client(pair, 0) as one, _client(pair, 1) as two:
        first = await one.launch(spec=spec)
        assert (await two.launch(spec=spec)).program_id == first.program_id
        follower = await two.run(spec=spec)  # attached: events come from the runtime that has the program
        assert follower.program_id == first.program_id
        assert await message(aiter(follower)) == "ready\n"
        await two.send(first.program_id, "stop")
        assert (await follower.wait()).success
        assert [i.program_id for i in await two.list(ended=True) if i.program_id == first.program_id] == [
            first.program_id
        ]


async def test_a_listing_says_what_each_program_holds_now(pair: Cluster) -> None:
    async with asyncio.timeout(60), _client(pair, 0) as one, _client(pair, 1) as two:
        run = await one.run(program("holder"))
        assert await message(aiter(run)) == "ready\n"
        for client in (one, two):
            (info,) = [i for i in await client.list() if i.program_id == run.program_id]
            assert info.pages > 0
        await one.send(run.program_id, "stop")
        await run.wait()
        (info,) = [i for i in await one.list(ended=True) if i.program_id == run.program_id]
        assert info.pages == 0


async def test_sources_that_no_message_holds_are_uploaded(pair: Cluster) -> None:
    big = replace(program("echo"), data=program("echo").data + b"\n#" + b"x" * (6 << 20))
    async with asyncio.timeout(60), _client(pair, 0) as client, _client(pair, 1, "operator") as operator:
        assert await client.validate(big) == big.digest
        run = await client.run(big)
        assert await message(aiter(run)) == "ready\n"
        run.cancel()
        assert await operator.put([tartlet.CatalogueEntry("large", big)]) == [big.digest]
        assert (await operator.get("large")).source.data == big.data
        named = await operator.run(spec=tartlet.LaunchSpec(inferlet="large"))  # this runtime has never seen the program
        assert await message(aiter(named)) == "ready\n"
        named.cancel()
        too_big = replace(big, data=bytes(17 << 20))
        for call in (client.launch(too_big), client.validate(too_big), operator.put([replace_source(too_big)])):
            with pytest.raises(SourceTooLarge) as refused:
                await call
            assert refused.value.fields == {"size": 17 << 20, "limit": 16 << 20}


def replace_source(source: tartlet.Source) -> tartlet.CatalogueEntry:
    """Returns a catalogue entry with this source."""
    return tartlet.CatalogueEntry("refused", source)


async def test_probes_tell_the_truth(run_dir: Path) -> None:
    """Stops and restarts control and drains the runtime, without waiting for a fixed time."""
    made = Cluster(run_dir)
    try:
        runtime = made.start_runtime(0)
        assert runtime.until_ready().startswith("ready")
        runtime.until_readyz(503, "control can't be reached")
        assert http_get(f"http://{runtime.health}/livez") == (200, "ok\n")
        control = made.start_control()
        worker = made.start_worker("--fake-break-token", "120", "--drain-grace-s", "60")
        for role in (control, runtime, worker):
            role.until_readyz(200)
            assert "python_info" in http_get(f"http://{role.health}/metrics")[1]
        async with asyncio.timeout(60), _client(made, 0) as client:
            run = await client.run(program("holder"))
            assert await message(aiter(run)) == "ready\n"
            for role in (control, runtime):
                lines = http_get(f"http://{role.health}/metrics")[1].splitlines()
                (running,) = [x for x in lines if x.startswith("tartlet_programs_running")]
                assert running.endswith(" 1.0")
            taken = {x.partition("} ")[0]: float(x.split()[-1]) for x in lines if x.startswith("tartlet_memory_taken")}
            assert len(taken) == len(Use), lines
            assert sum(n for name, n in taken.items() if 'use="programs"' in name) > 1 << 20, taken
            (limit,) = [float(x.split()[-1]) for x in lines if x.startswith("tartlet_memory_limit")]
            assert sum(taken.values()) < limit
            worker.process.send_signal(signal.SIGTERM)
            worker.until_readyz(503, "draining")
            run.cancel()
        assert worker.process.wait(20) == 0
        control.kill()
        runtime.until_readyz(503, "control can't be reached")
        made.start_control()
        runtime.until_readyz(200)
    finally:
        made.stop()


async def test_programs_past_the_grace_of_a_drain_are_told_so_and_those_of_a_crash_are_not(run_dir: Path) -> None:
    made = Cluster(run_dir)
    try:
        worker = made.start_worker("--drain-grace-s", "1", "--engine-id", "first")
        for role in (made.start_control("--rebuild-grace-s", "0"), made.start_runtime(0), worker):
            role.until_readyz(200)
        async with asyncio.timeout(60), _client(made, 0) as client:
            run = await client.run(program("holder"))
            assert await message(aiter(run)) == "ready\n"
            worker.process.send_signal(signal.SIGTERM)
            drained = (await run.wait()).error
            assert isinstance(drained, Draining)
            assert drained.fields == {"engine": "first", "grace_s": 1.0}
            assert await asyncio.to_thread(worker.process.wait, 20) == 0
            made.start_worker("--drain-grace-s", "60").until_readyz(200)
            run = await client.run(program("holder"))
            assert await message(aiter(run)) == "ready\n"
            made.roles["worker"].process.send_signal(signal.SIGTERM)
            made.roles["worker"].until_readyz(503, "draining")
            made.roles["worker"].kill()
            assert isinstance((await run.wait()).error, WorkerLost)
    finally:
        made.stop()


async def test_roles_meet_again_after_every_certificate_was_rotated(run_dir: Path) -> None:
    with cluster(run_dir, runtimes=2) as made:
        async with asyncio.timeout(60), _client(made, 1) as client:
            await client.list()
        made.rotate()
        made.roles["control"].kill()
        for role in (made.start_control(), made.roles["runtime0"], made.roles["runtime1"], made.roles["worker"]):
            role.until_readyz(200)
        async with asyncio.timeout(60), _client(made, 0) as owner, _client(made, 1) as other:
            accepted = await owner.launch(program("sampled"), ["a", "0", "0", "1", "1"])
            assert (await (await other.attach(accepted.program_id)).wait()).success


async def test_the_runtime_of_a_followed_program_without_a_journal_dies(run_dir: Path) -> None:
    with cluster(run_dir, runtimes=2) as made:
        async with asyncio.timeout(60), _client(made, 0) as owner, _client(made, 1) as other:
            accepted = await owner.launch(spec=tartlet.LaunchSpec(source=program("echo"), durable=False))
            run = await other.attach(accepted.program_id)
            assert await message(aiter(run)) == "ready\n"
            made.roles["runtime0"].kill()
            ended = await run.wait()
            assert isinstance(ended.error, RuntimeLost)
            assert (await (await other.run(program("sampled"), ["a", "0", "0", "1", "1"])).wait()).success
