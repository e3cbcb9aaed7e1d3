"""One tenant's requests hold up none of another's."""

from __future__ import annotations

import asyncio
import contextlib

from tartlet_common.capabilities import Grant
from tartlet_common.egress.addresses import Exceptions
from tartlet_common.egress.hosts import Url
from tartlet_runtime.budget.turns import Turns
from tartlet_runtime.web.asked import Asked
from tartlet_runtime.web.sending import OF_A_TENANT, May, Sender
from tests.runtime.harness import until
from tests.runtime.web.servers import serving

EVERYTHING = Grant("launch", ("*",))


async def test_a_tenants_requests_wait_for_its_own_connections_alone() -> None:
    async with serving() as server:
        made = Sender(Exceptions(("127.0.0.1",)))
        inside = 0

        async def get(path: str, tenant: str) -> None:
            nonlocal inside
            asked = Asked("GET", Url.of(f"{server.url}{path}"))
            async with made.send(asked, May(tenant, (EVERYTHING,), EVERYTHING)) as reply:
                await reply.read()
                inside += tenant == "b"

        flood = [asyncio.create_task(get("/silent", "a")) for _ in range(OF_A_TENANT + 5)]
        async with asyncio.timeout(20):
            await until(lambda: server.connections >= OF_A_TENANT)
            await get("/bytes?3", "b")
            assert server.connections == OF_A_TENANT + 1
            server.go_on.set()
            await asyncio.gather(*flood)
        assert (server.connections, inside) == (OF_A_TENANT + 6, 1)
        await made.close()


async def test_nothing_is_kept_of_tenants_that_use_nothing() -> None:
    turns = Turns(1)
    async with turns.turn("a"):
        waiting = asyncio.create_task(turns.turn("a").__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
    assert not turns._places
