"""Separation of tenants: real roles over mutual TLS, certificates that name a tenant, every call about a program."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import tartlet
from tartlet_common.errors.registry import PermissionDenied, TartletError, UnknownInferlet, UnknownProgram
from tests.e2e.cluster import Cluster, cluster
from tests.e2e.serving import message, program

NOBODY = "00000000-0000-4000-8000-000000000000"


@pytest.fixture(scope="module")
def pair() -> Iterator[Cluster]:
    """Two runtimes of one control, and a fake worker."""
    with tempfile.TemporaryDirectory(prefix="tt-") as directory, cluster(Path(directory), runtimes=2) as made:
        yield made


def _client(made: Cluster, number: int, *names: str, tenant: str | None = None) -> tartlet.AsyncClient:
    return tartlet.AsyncClient(made.runtimes[number], control=made.control, tls=made.identity(*names), tenant=tenant)


def _member(made: Cluster, number: int, team: str) -> tartlet.AsyncClient:
    return _client(made, number, f"tenant.{team}", "client")


async def _refusals(client: tartlet.AsyncClient, program_id: str) -> list[TartletError]:
    """Returns the errors of a client that attaches to, writes to and ends a program that it may not see."""
    errors: list[TartletError] = []
    for call in (
        (await client.attach(program_id)).wait(),
        client.send(program_id, "stop"),
        client.kill(program_id),
    ):
        with pytest.raises(TartletError) as refused:
            await call
        errors.append(refused.value)
    return errors


async def test_a_program_of_another_tenant_is_as_one_that_does_not_exist(pair: Cluster) -> None:
    """Asks at the program's runtime and at another one, while the program runs and after its end."""
    async with asyncio.timeout(90), _member(pair, 0, "a") as owner:
        accepted = await owner.launch(program("echo"))
        (info,) = await owner.list()
        assert (info.program_id, info.tenant) == (accepted.program_id, "a")
        for number in (0, 1):
            async with (
                _member(pair, number, "b") as other,
                _client(pair, number, "client") as nameless,
                _client(pair, number, "operator") as operator,
                _client(pair, number, "operator", tenant="b") as narrowed,
            ):
                for stranger in (other, nameless, narrowed):
                    theirs, nobodys = await _refusals(stranger, accepted.program_id), await _refusals(stranger, NOBODY)
                    assert {type(e) for e in theirs + nobodys} == {UnknownProgram}
                    assert [str(e).replace(accepted.program_id, NOBODY) for e in theirs] == [str(e) for e in nobodys]
                    assert await stranger.list(ended=True) == []
                    assert await stranger.list(ended=True, tenant="a") == []
                    assert (await stranger.state()).control["programs"] == []
                assert [i.program_id for i in await operator.list()] == [accepted.program_id]
                assert [p["tenant"] for p in (await operator.state()).control["programs"]] == ["a"]
        async with _member(pair, 1, "a") as elsewhere, _member(pair, 1, "b") as other:
            run = await elsewhere.attach(accepted.program_id)  # the same tenant, at another runtime
            assert await message(aiter(run)) == "ready\n"
            await elsewhere.send(accepted.program_id, "stop")
            assert (await run.wait()).success
            assert {type(e) for e in await _refusals(other, accepted.program_id)} == {UnknownProgram}
            assert [i.program_id for i in await elsewhere.list(ended=True)] == [accepted.program_id]


async def test_a_launch_is_for_the_callers_tenant(pair: Cluster) -> None:
    spec = tartlet.LaunchSpec(source=program("waits"), idempotency_key="same")
    async with (
        asyncio.timeout(90),
        _member(pair, 0, "c") as c,
        _member(pair, 1, "d") as d,
        _client(pair, 1, "operator") as operator,
    ):
        mine, theirs = await c.launch(spec=spec), await d.launch(spec=spec)
        assert mine.program_id != theirs.program_id  # a key belongs to one tenant
        foreign = tartlet.LaunchSpec(source=program("waits"), tenant="d")
        answers = await c.launch_many([foreign, spec])
        assert isinstance(answers[0], PermissionDenied)
        assert answers[1] == tartlet.Accepted(mine.program_id)
        for_d = await operator.launch(spec=foreign)
        assert {i.program_id for i in await d.list()} == {theirs.program_id, for_d.program_id}
        for program_id in (mine.program_id, theirs.program_id, for_d.program_id):
            await operator.kill(program_id)


async def test_the_catalogue_of_another_tenant_is_as_an_empty_one(pair: Cluster) -> None:
    entry = tartlet.CatalogueEntry("tool", program("echo"), tenant="e")
    async with (
        asyncio.timeout(90),
        _client(pair, 0, "operator") as operator,
        _client(pair, 0, "operator", tenant="e") as for_e,
        _client(pair, 0, "operator", tenant="f") as for_f,
        _member(pair, 1, "f") as f,
    ):
        await operator.put([entry])
        assert [e.name for e in await for_e.catalogue()] == [
            "tool"
        ]  # a launch without a tenant is for the caller's own
        assert (await for_e.get("tool")).source.data == entry.source.data
        with pytest.raises(PermissionDenied):
            await for_f.put([entry])
        assert await for_f.catalogue(tenant="e") == []
        for call in (for_f.get("tool", tenant="e"), for_f.delete("tool", tenant="e"), for_f.get("tool")):
            with pytest.raises(UnknownInferlet, match="tool"):
                await call
        with pytest.raises(UnknownInferlet):
            await f.launch(spec=tartlet.LaunchSpec(inferlet="tool"))
        await for_e.delete("tool")
        assert await operator.catalogue(tenant="e") == []


async def test_topics_and_the_store_reach_other_runtimes_but_no_other_tenant(pair: Cluster) -> None:
    """Two tenants use the same topic and key; each has a program at both runtimes."""
    async with (
        asyncio.timeout(90),
        _member(pair, 0, "e") as here,
        _member(pair, 1, "e") as there,
        _member(pair, 1, "f") as other,
    ):
        mine, theirs = [await client.run(program("shares"), ["listen"]) for client in (there, other)]
        assert [await message(aiter(run)) for run in (mine, theirs)] == ["ready", "ready"]
        told = await (await here.run(program("shares"), ["tell", "for e"])).wait()
        assert (told.success, (told.result or "").split()[0]) == (True, "1")
        assert (await mine.wait()).result == "for e"
        assert (await (await here.run(program("shares"), ["look"])).wait()).result == "['heard'] for e"
        assert (await (await other.run(program("shares"), ["look"])).wait()).result == "[] None"
        assert (await (await other.run(program("shares"), ["tell", "for f"])).wait()).success
        assert (await theirs.wait()).result == "for f"
        assert (await (await here.run(program("shares"), ["look"])).wait()).result == "['heard'] for e"
