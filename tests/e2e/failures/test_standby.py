"""Two controls, of which one leads: peers reach the leader whichever one they dial, and programs outlive it."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import tartlet
from tests.e2e.cluster import Cluster, free_port
from tests.e2e.cutting import STEP_S, Cutter, round_of
from tests.e2e.serving import until_nothing_is_held
from tests.redis_server import redis_server


class Controls:
    """Two controls behind one address, as pods behind a Service: each connection goes to one that is ready, in turn."""

    def __init__(self, roles: Cluster, lease_url: str) -> None:
        self.roles = roles
        self._lease_url = lease_url
        self.addresses = {name: f"localhost:{free_port()}" for name in ("control0", "control1")}
        self._turns = itertools.cycle(self.addresses)

    def start(self, name: str, *, leads: bool) -> None:
        at = self.addresses[name]
        flags = ("--address", at, "--advertise", at, "--lease-url", self._lease_url)
        self.roles.start(name, "control", *flags, tls=self.roles.identity("control"))
        self.roles.roles[name].until_readyz(200)
        assert self.leads(name) is leads

    def leads(self, name: str) -> bool:
        return "standing by" not in self.roles.roles[name].log.read_text().split("listening at")[-1]

    async def dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for name in itertools.islice(self._turns, len(self.addresses)):
            role = self.roles.roles.get(name)
            if role is not None and role.process.poll() is None:
                host, _, port = self.addresses[name].rpartition(":")
                return await asyncio.open_connection(host, int(port))
        raise ConnectionRefusedError


async def test_programs_go_on_as_controls_die_in_turn_and_every_role_dials_either_of_them(run_dir: Path) -> None:
    roles = Cluster(run_dir)
    with redis_server(run_dir / "redis") as redis:
        controls = Controls(roles, redis.url)
        service = Cutter(controls.dial)
        server = await asyncio.start_server(service.serve, "localhost", 0)
        roles.dialled = f"localhost:{server.sockets[0].getsockname()[1]}"
        try:
            await asyncio.to_thread(controls.start, "control0", leads=True)
            await asyncio.to_thread(controls.start, "control1", leads=False)
            await asyncio.to_thread(roles.start_worker, "--fake-step-s", STEP_S)
            await asyncio.to_thread(roles.start_runtime, 0)
            for name in ("worker", "runtime0"):
                await asyncio.to_thread(roles.roles[name].until_readyz, 200)
            async with asyncio.timeout(120):
                await _kill_leaders(controls)
        finally:
            server.close()
            await service.close()
            roles.stop()


async def _kill_leaders(controls: Controls) -> None:
    """Kill the leader, let the other one take over, and start the killed one as the standby; then the other way."""
    roles, tls = controls.roles, controls.roles.identity("client")
    async with tartlet.AsyncClient(roles.runtimes[0], control=controls.addresses["control1"], tls=tls) as client:
        undisturbed = await round_of(client)
        for dying, next_one in (("control0", "control1"), ("control1", "control0")):
            running = asyncio.ensure_future(round_of(client))
            await asyncio.sleep(0.2)
            roles.roles[dying].kill()
            assert await running == undisturbed
            assert controls.leads(next_one)
            await asyncio.to_thread(controls.start, dying, leads=False)
            assert await round_of(client) == undisturbed
            await until_nothing_is_held(client)


async def test_a_leader_that_is_told_to_stop_hands_over_at_once(run_dir: Path) -> None:
    roles = Cluster(run_dir)
    with redis_server(run_dir / "redis") as redis:
        controls = Controls(roles, redis.url)
        try:
            await asyncio.to_thread(controls.start, "control0", leads=True)
            await asyncio.to_thread(controls.start, "control1", leads=False)
            first = roles.roles["control0"].process
            first.terminate()
            async with asyncio.timeout(10):
                assert await asyncio.to_thread(first.wait) == 0
                while not controls.leads("control1"):  # noqa: ASYNC110 - its log tells
                    await asyncio.sleep(0.05)
            await asyncio.to_thread(roles.roles["control1"].until_readyz, 200)
        finally:
            roles.stop()
