"""One tenant may have so many requests open at a gateway, and no other tenant notices."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tartlet_common.api_keys import TenantLimits
from tartlet_gateway.access import gate
from tartlet_gateway.access.identity import Identity
from tartlet_gateway.access.rates import Rate


class Named:
    """Lets everybody in as the tenant that the key names."""

    async def identify(self, text: str) -> Identity:
        return Identity(text)

    async def still_valid(self, text: str) -> bool:
        return bool(text)

    def limits(self, tenant: str) -> TenantLimits:
        del tenant
        return TenantLimits()


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    del scope, receive
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def test_reading_stored_responses_counts_for_the_rate() -> None:
    guarded: Any = gate.Gate(_nothing, Named(), Rate(requests_per_minute=2), 1)  # type: ignore[arg-type]
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(guarded), base_url="http://gateway", headers={"authorization": "Bearer a"}
    ) as client:
        replies = [await client.get("/v1/responses/resp_x") for _ in range(3)]
        assert [reply.status_code for reply in replies] == [200, 200, 429]
        assert int(replies[2].headers["retry-after"]) > 0
        assert (await client.get("/v1/models")).status_code == 200


async def test_streams_beyond_the_bound_are_refused_until_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "MOST_OPEN", 2)
    go_on = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        del receive
        if scope["path"] == "/waits":
            await go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    guarded: Any = gate.Gate(app, Named(), Rate(), 1)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(guarded), base_url="http://gateway") as client:

        async def get(path: str, tenant: str) -> httpx.Response:
            return await client.get(path, headers={"authorization": f"Bearer {tenant}"})

        waiting = [asyncio.create_task(get("/waits", "a")) for _ in range(2)]
        await asyncio.sleep(0.05)
        refused = await get("/other", "a")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_open")
        assert (await get("/other", "b")).status_code == 200
        go_on.set()
        assert [reply.status_code for reply in await asyncio.gather(*waiting)] == [200, 200]
        assert (await get("/other", "a")).status_code == 200


async def test_tenants_that_rest_are_forgotten_and_busy_ones_keep_their_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "MOST_TENANTS", 3)
    go_on, waits, now_s = asyncio.Event(), asyncio.Event(), 0.0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/waits":
            waits.set()
            await go_on.wait()
        await _nothing(scope, receive, send)

    guarded: Any = gate.Gate(app, Named(), Rate(2, 0, 1), 1, clock=lambda: now_s)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(guarded), base_url="http://gateway") as client:

        async def post(tenant: str, path: str = "/v1/chat/completions") -> int:
            return (await client.post(path, headers={"authorization": f"Bearer {tenant}"})).status_code

        waiting = asyncio.create_task(post("waits", "/waits"))
        await waits.wait()
        assert [await post("spent") for _ in range(3)] == [200, 200, 429]
        assert [await post(str(at)) for at in range(20)] == [200] * 20
        assert [await post("waits"), await post("spent")] == [429, 429], "nobody's counts are forgotten at once"
        for at in range(20, 60):
            now_s += 60.0
            assert await post(str(at)) == 200
        assert len(guarded._tenants) <= 4, "the last one, the one that waits, and at most two more"
        assert await post("waits") == 429
        go_on.set()
        assert await waiting == 200
