"""Releases and namespaces that share an authority: real roles over mutual TLS, one engine for each namespace."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tartlet
from tartlet_common.errors.registry import (
    NoEngine,
    PermissionDenied,
    TartletError,
    Unavailable,
    UnknownModel,
    UnknownPool,
)
from tests.e2e.cluster import Cluster
from tests.e2e.serving import program

OURS, THEIRS = "tartlet.prod.tartlet.internal", "tartlet.other.tartlet.internal"
GENERATED = ["hello", "0", "0", "1", "1"]
ROGUE_S = 30.0


def _worker(
    made: Cluster, name: str, pool: str, *flags: str, tenant: str | None = None, certificate: Any = None
) -> Any:
    """Starts a fake engine whose certificate names `tenant`; default: the tenant of the pool."""
    tls = certificate or made.identity("worker", f"tenant.{tenant or pool.partition('/')[0]}")
    own = ("--engine", "fake", "--control", made.control, "--pool", pool, "--engine-id", name)
    return made.start(f"worker-{name}-{len(made.roles)}", "worker", *own, *flags, tls=replace(tls, domain=OURS))


@pytest.fixture(scope="module")
def release() -> Iterator[Cluster]:
    """Control, a runtime, an engine of the model `demo` in each of the namespaces a and b, and a shared one in ops."""
    with tempfile.TemporaryDirectory(prefix="tt-") as directory:
        made = Cluster(Path(directory), OURS)
        try:
            flags = ("--address", made.control, "--shared-pools", "ops/open")
            made.start("control", "control", *flags, tls=made.identity("control"))
            made.start_runtime(0)
            _worker(made, "pod-0", "a/demo", "--model-name", "demo", "--page-size", "16")
            _worker(made, "pod-0", "b/demo", "--model-name", "demo", "--page-size", "8")
            _worker(made, "pod-1", "ops/open", "--model-name", "open")
            for role in made.roles.values():
                role.until_readyz(200)
            yield made
        finally:
            made.stop()


def _client(made: Cluster, *names: str) -> tartlet.AsyncClient:
    return tartlet.AsyncClient(made.runtimes[0], control=made.control, tls=made.identity(*names))


def _of(made: Cluster, tenant: str) -> tartlet.AsyncClient:
    return _client(made, "client", f"tenant.{tenant}")


async def _page_size(client: tartlet.AsyncClient, **launch: Any) -> int:
    """Returns the page size of the engine on which a program of the client runs, which tells the engines apart."""
    run = await client.run(spec=tartlet.LaunchSpec(program("places/which"), **launch))
    ended = await run.wait()
    if ended.error is not None:
        raise ended.error
    return int(ended.result or "")


async def _engines(made: Cluster) -> dict[str, str]:
    """Returns control's engines, with their pools."""
    async with _client(made, "operator") as operator:
        return {e["id"]: e["pool"] for e in (await operator.state()).control["engines"]}


async def _until_engines(made: Cluster, *wanted: str) -> None:
    async with asyncio.timeout(30):
        while set(await _engines(made)) != set(wanted):  # noqa: ASYNC110 - other processes bring them
            await asyncio.sleep(0.05)


ALL = ("a/pod-0", "b/pod-0", "ops/pod-1")


async def test_two_namespaces_with_pools_of_one_model_name_run_on_their_own_engines(release: Cluster) -> None:
    async with asyncio.timeout(60), _of(release, "a") as a, _of(release, "b") as b:
        assert await _engines(release) == {"a/pod-0": "a/demo", "b/pod-0": "b/demo", "ops/pod-1": "ops/open"}
        for launch in ({}, {"model": "demo"}, {"pool": "demo"}):
            sizes = await asyncio.gather(*(_page_size(client, **launch) for client in (a, b) * 3))
            assert sizes == [16, 8] * 3, launch


async def test_an_engine_that_restarts_is_never_replaced_by_another_namespaces(release: Cluster) -> None:
    """Runs of a's program wait for a's engine, however long b's engine of the same name is there."""
    role = next(r for n, r in release.roles.items() if n.startswith("worker-pod-0"))
    async with asyncio.timeout(90), _of(release, "a") as a:
        role.kill()
        await _until_engines(release, "b/pod-0", "ops/pod-1")
        for launch in ({"model": "demo"}, {"pool": "a/demo"}):
            with pytest.raises((NoEngine, UnknownPool)):
                await _page_size(a, **launch)
        _worker(release, "pod-0", "a/demo", "--model-name", "demo", "--page-size", "16")
        await _until_engines(release, *ALL)
        assert await _page_size(a, model="demo") == 16


async def test_a_worker_of_one_namespace_cannot_bring_an_engine_of_another(release: Cluster) -> None:
    """It claims a's pool, a's model and the name of a's engine."""
    rogue = _worker(release, "pod-0", "a/demo", "--model-name", "demo", tenant="b")
    assert await asyncio.to_thread(rogue.process.wait, ROGUE_S) != 0
    assert "PermissionDenied" in rogue.log.read_text()
    quiet = _worker(release, "rogue", "demo", "--model-name", "demo", "--page-size", "8", tenant="b")
    await _until_engines(release, *ALL, "b/rogue")
    async with asyncio.timeout(60), _of(release, "a") as a:
        assert {await _page_size(a, model="demo") for _ in range(6)} == {16}
    quiet.kill()
    await _until_engines(release, *ALL)


async def test_a_namespace_sees_its_own_engines_and_shared_ones(release: Cluster) -> None:
    async with asyncio.timeout(60), _of(release, "a") as a, _of(release, "c") as c:
        for client, engines, models in ((a, ["a/pod-0", "ops/pod-1"], ["demo", "open"]), (c, ["ops/pod-1"], ["open"])):
            told = (await client.state()).control
            assert sorted(e["id"] for e in told["engines"]) == engines
            assert [m["name"] for m in told["models"]] == models
        with pytest.raises(UnknownModel) as unknown:
            await _page_size(c, model="demo")
        assert unknown.value.fields["available"] == ["open"]
        with pytest.raises(UnknownPool) as foreign:
            await _page_size(c, pool="a/demo")
        assert foreign.value.fields["available"] == ["ops/open"]
        run = await c.run(program("places/models"))
        assert (await run.wait()).result == "['open']" + 2 * " UnknownModel UnknownQueue"


async def _refused(client: tartlet.AsyncClient) -> list[type[TartletError]]:
    """Returns how an operator's calls to the runtime and to control end."""
    ended: list[type[TartletError]] = []
    async with client:
        for call in (client.list(), client.catalogue()):
            try:
                await call
            except TartletError as e:
                ended.append(type(e))
    return ended


STRANGERS = {
    "another release": ("operator." + THEIRS,),
    "a Service named operator": ("operator", "operator.x", "operator.x.svc", "operator.x.svc.cluster.local"),
    "a tenant named operator": ("tenant.operator." + OURS,),
    "two roles": ("operator." + OURS, "client." + OURS),
}


@pytest.mark.parametrize("names", STRANGERS.values(), ids=STRANGERS)
async def test_a_certificate_of_the_same_authority_without_a_role_of_this_release_may_do_nothing(
    release: Cluster, names: tuple[str, ...]
) -> None:
    tls = release.certificate(*names)
    async with asyncio.timeout(60):
        client = tartlet.AsyncClient(release.runtimes[0], control=release.control, tls=tls)
        assert await _refused(client) == [PermissionDenied] * 2


async def test_roles_of_another_release_under_one_authority_do_not_talk_to_this_one(release: Cluster) -> None:
    """Their worker finds this release's control, their operator dials it, and our client is led to theirs."""
    worker = release.certificate(f"worker.{THEIRS}", f"tenant.a.{THEIRS}")
    stray = _worker(release, "stray", "a/demo", "--model-name", "demo", certificate=worker)
    theirs = Cluster(release.directory / "theirs", THEIRS, release.authority)
    theirs.directory.mkdir()
    try:
        theirs.start_control()
        theirs.start_runtime(0)
        for role in theirs.roles.values():
            role.until_readyz(200)
        async with asyncio.timeout(60):
            led = tartlet.AsyncClient(theirs.runtimes[0], tls=release.identity("client", "tenant.a"), retry_s=0.0)
            async with led:
                with pytest.raises(Unavailable):
                    await led.list()
            dials = tartlet.AsyncClient(release.runtimes[0], tls=theirs.identity("operator"), retry_s=0.0)
            async with dials:
                with pytest.raises(Unavailable):
                    await dials.list()
    finally:
        theirs.stop()
    stray.until_readyz(503)
    assert set(await _engines(release)) == set(ALL)
    stray.kill()
