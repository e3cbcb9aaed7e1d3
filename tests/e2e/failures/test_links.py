"""Broken links lose nothing: real roles behind a proxy that cuts, refuses and swallows."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import tartlet
from tartlet_common.errors.registry import TartletError, WorkerLost
from tests.e2e.cluster import Cluster
from tests.e2e.cutting import STEP_S, Proxy, nothing_is_lost_while_cut, on_one_machine, proxy, round_of, run
from tests.e2e.serving import SAMPLERS, pools, program, until_nothing_is_held


@contextlib.asynccontextmanager
async def over_tcp(run_dir: Path) -> AsyncIterator[tuple[Proxy, tartlet.AsyncClient]]:
    """Roles with mutual TLS whose runtime and worker reach control through a proxy that sees bytes alone."""
    roles = Cluster(run_dir)

    def start() -> None:
        tls = roles.identity("control")
        grace = ("--runtime-grace-s", "20", "--engine-grace-s", "20")
        roles.start("control", "control", "--address", roles.control, *grace, tls=tls)
        roles.dialled = dialled
        roles.start_worker("--fake-step-s", STEP_S)
        roles.start_runtime(0)
        for role in roles.roles.values():
            role.until_readyz(200)

    async with proxy() as made:
        dialled = await made.before(roles.control)
        try:
            await asyncio.to_thread(start)
            tls = roles.identity("client")
            async with tartlet.AsyncClient(roles.runtimes[0], control=roles.control, tls=tls) as client:
                yield made, client
        finally:
            roles.stop()


async def test_nothing_is_lost_on_tls_connections_that_are_cut_every_50_ms(run_dir: Path) -> None:
    async with asyncio.timeout(100), over_tcp(run_dir) as (made, client):
        assert await nothing_is_lost_while_cut(client, made, 0.05, 4.0) > 20


async def test_a_connection_that_ends_without_a_word_is_noticed_and_nothing_is_lost(run_dir: Path) -> None:
    """No byte arrives and no connection ends, as behind a router that has lost its table."""
    async with asyncio.timeout(100), on_one_machine(run_dir) as (_, made, client):
        undisturbed = await round_of(client)
        running = asyncio.ensure_future(round_of(client))
        await asyncio.sleep(0.1)
        made.deafen()
        assert await running == undisturbed
        await until_nothing_is_held(client)


@pytest.mark.parametrize(("role", "error"), [("worker", WorkerLost), ("runtime", None)])
async def test_what_becomes_of_programs_when_a_role_stays_away_for_longer_than_its_grace(
    run_dir: Path, role: str, error: type[TartletError] | None
) -> None:
    async with asyncio.timeout(60), on_one_machine(run_dir, roles=(role,), grace_s=0.5) as (_, made, client):
        held = await client.launch(program("holder"))
        while not any(pool["held"] for pool in await pools(client)):  # noqa: ASYNC110 - another process holds them
            await asyncio.sleep(0.02)
        async with made.away():
            if error is not None:
                ended = await (await client.attach(held.program_id)).wait()
                assert isinstance(ended.error, error)
            await asyncio.sleep(1.0)  # control notices as well
        while not (engines := (await client.state()).control.get("engines")):  # noqa: ASYNC110 - another process joins
            await asyncio.sleep(0.05)
        assert engines[0]["state"] == "ready"  # a late worker was refused, and has joined anew
        await run(client, SAMPLERS[0])
        if error is None:  # the runtime has come back with the program, and control has made its state again
            while not any(pool["held"] for pool in await pools(client)):  # noqa: ASYNC110 - another process holds them
                await asyncio.sleep(0.02)
            await client.kill(held.program_id)
        await until_nothing_is_held(client)


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("every_s", [0.02, 0.05, 0.3])
async def test_nothing_is_lost_in_a_minute_of_cuts(run_dir: Path, every_s: float) -> None:
    async with asyncio.timeout(300), on_one_machine(run_dir) as (_, made, client):
        assert await nothing_is_lost_while_cut(client, made, every_s, 60.0) > 100
