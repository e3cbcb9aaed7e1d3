"""A gateway closes the connections of tenants that were idle longest, so that new tenants don't add up."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from typing import Any, cast

import pytest

import tartlet
from tartlet_gateway.responses.recordings import Recordings
from tartlet_gateway.responses.records import Record
from tartlet_gateway.responses.requests import ResponseRequest
from tartlet_gateway.responses.shelf import Shelf
from tartlet_gateway.runs.backends import Backends
from tartlet_gateway.runs.caller import Caller, Place, set_caller


class Counted(tartlet.AsyncClient):
    """A client that counts those of its kind that are open."""

    open: list[Counted]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.open.append(self)
        self._programs()  # makes the channel, which connects with its first call

    async def close(self) -> None:
        await super().close()
        self.open.remove(self)


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Counted]]:
    monkeypatch.setattr(Counted, "open", [], raising=False)
    monkeypatch.setattr(tartlet, "AsyncClient", Counted)
    yield Counted.open
    assert not Counted.open, "closing a gateway closes all clients"


def backends(most_idle: int) -> Backends:
    return Backends("unix:/nowhere", None, "unix:/nowhere", 1, most_idle=most_idle)


async def closed(made: Backends) -> None:
    """Returns once the clients that are being closed are."""
    await asyncio.gather(*made._closing)


def of(tenant: str) -> dict[str, Any]:
    scope: dict[str, Any] = {"type": "http"}
    set_caller(scope, Caller(tenant=tenant))
    return scope


async def unheard() -> Any:
    raise AssertionError


async def untold(_message: Any) -> None:
    raise AssertionError


async def test_the_tenants_that_were_used_last_keep_their_clients(clients: list[Counted]) -> None:
    made = backends(most_idle=2)
    seen: dict[str, tartlet.AsyncClient] = {}

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        seen[scope["tartlet.caller"].tenant] = made.of(scope["tartlet.caller"]).client

    for tenant in ("a", "b", "a", *map(str, range(20)), "c", "d", "c", "e"):
        await made.held(app)(of(tenant), unheard, untold)
        await closed(made)
        assert len(clients) <= 2
    assert set(clients) == {seen["c"], seen["e"]}
    await made.close()


async def test_a_request_under_way_keeps_its_client_and_finds_it_again(clients: list[Counted]) -> None:
    made = backends(most_idle=1)
    began, goes_on = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        before = made.of(scope["tartlet.caller"])
        began.set()
        await goes_on.wait()
        assert made.of(scope["tartlet.caller"]) is before

    async def short(scope: Any, _receive: Any, _send: Any) -> None:
        made.of(scope["tartlet.caller"])

    long = [asyncio.ensure_future(made.held(app)(of("long"), unheard, untold)) for _ in range(2)]
    await began.wait()
    for tenant in "abc":
        await made.held(short)(of(tenant), unheard, untold)
    await closed(made)
    assert len(clients) == 2, "the long one's, and one idle"
    goes_on.set()
    await asyncio.gather(*long)
    await closed(made)
    assert len(clients) == 1
    await made.close()


async def test_a_launched_program_that_counts_keeps_its_tenants_client(clients: list[Counted]) -> None:
    made = backends(most_idle=0)

    class Runtime:
        async def launch(self, *, spec: tartlet.LaunchSpec) -> tartlet.Accepted:
            return tartlet.Accepted(spec.idempotency_key)

    caller = Caller(tenant="a", hold=lambda _key: Place(lambda: None, lambda: 0))
    release = made.hold("a")
    made.of(caller)
    spec = tartlet.LaunchSpec(inferlet="x", idempotency_key="p")
    accepted = await made.lasting.launch(cast("Any", Runtime()), caller, spec)
    release()
    await closed(made)
    assert len(clients) == 1
    made.lasting.ended("a", accepted.program_id)
    await asyncio.gather(*made.lasting._tasks)
    await asyncio.sleep(0)
    await closed(made)
    assert not clients
    await made.close()


async def test_a_response_that_is_followed_keeps_its_tenants_client(clients: list[Counted]) -> None:
    made = backends(most_idle=0)

    class Run:
        ended = None
        program_id = str(uuid.uuid4())

        def __aiter__(self) -> Run:
            return self

        async def __anext__(self) -> Any:
            await asyncio.Event().wait()

        def cancel(self) -> None: ...

    release = made.hold("a")
    backend = made.of(Caller(tenant="a"))
    request = ResponseRequest(model="fake", input="Hi", background=True)
    record = Record(program_id=Run.program_id, model="fake", created_s=int(time.time()), request=request)
    shelf = Shelf(backend.client, 60.0, backend.hold)
    recording = Recordings(0.0).begin(record, cast("Any", Run()), shelf)
    release()
    await closed(made)
    assert len(clients) == 1
    recording.task.cancel()
    await asyncio.gather(recording.task, return_exceptions=True)
    await asyncio.sleep(0)
    await closed(made)
    assert not clients
    await made.close()
