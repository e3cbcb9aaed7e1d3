"""One operator for several namespaces handles the given namespaces and no other."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

import tartlet
from tests.operator.api_server import ApiServer
from tests.operator.live.test_inferlets import SLEEPING
from tests.operator.operator_process import ENGINE, Live, live

NAMED = "async def main():\n    return 'of {}'\n"
POOL = {"model": {"name": "pooled"}, "engine": {"backend": "Fake"}}  # runs of another model use any engine


@pytest.fixture
def given(api_server: ApiServer) -> list[str]:
    """Two namespaces to watch, and a third that isn't watched."""
    names = [f"t-{word}-{uuid.uuid4().hex[:8]}" for word in ("one", "two", "other")]
    for name in names:
        api_server.create_namespace(name)
    return names


def apply(it: Live, name: str) -> None:
    """Create an object of each kind, with the same names in every namespace."""
    it.create("EnginePool", "pool", POOL)
    it.create("Inferlet", "named", {"source": {"inline": NAMED.format(name)}})
    it.create("InferletRun", "r", {"inferlet": "named", "model": "fake"})  # a run of no model waits for a pool


async def brought_about(it: Live, name: str) -> None:
    """Wait until the namespace's objects are as they should be."""
    await it.until_condition("InferletRun", "r", "Succeeded")
    assert it.get("InferletRun", "r")["status"]["result"] == f"of {name}"
    await it.until_condition("EnginePool", "pool", "Ready", "False", "RollingOut")
    assert it.core("GET", "apis/apps/v1", "deployments/pool")["metadata"]["namespace"] == it.namespace
    assert it.condition("Inferlet", "named", "Runnable")["reason"] == "PoolNotReady"


async def begun(it: Live, name: str) -> str:
    """Wait until a run has put something out; return its program's id."""
    await it.until(lambda: it.get("InferletRun", name).get("status", {}).get("output"))
    return str(it.get("InferletRun", name)["status"]["programId"])


async def test_only_the_given_namespaces_are_handled(
    api_server: ApiServer, namespace: str, given: list[str], run_dir: Path
) -> None:
    async with live(api_server, namespace, run_dir, f"--namespaces={given[0]}, {given[1]}") as own:
        one, two, other = (replace(own, namespace=name) for name in given)
        for it, name in ((one, "one"), (two, "two"), (other, "other"), (own, "own")):
            apply(it, name)
        for it, name in ((one, "one"), (two, "two")):
            await brought_about(it, name)

        # a pool of one namespace doesn't make the other's inferlets runnable
        template = one.core("GET", "apis/apps/v1", "deployments/pool")["spec"]["template"]
        labels = template["metadata"]["labels"]
        one.core("POST", "api/v1", "pods", {"metadata": {"name": ENGINE, "labels": labels}, "spec": template["spec"]})
        ready = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
        merge = "application/merge-patch+json"
        one.core("PATCH", "api/v1", f"pods/{ENGINE}/status", {"status": ready}, merge)
        counts = {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1}
        one.core("PATCH", "apis/apps/v1", "deployments/pool/status", {"status": counts}, merge)
        await one.until_condition("Inferlet", "named", "Runnable")
        assert two.condition("Inferlet", "named", "Runnable")["reason"] == "PoolNotReady"

        # gone in one while nobody looks: its program ends, and its entry, and nothing of the other's
        programs = {}
        for it in (one, two):
            it.create("Inferlet", "sleeping", {"source": {"inline": SLEEPING}})
            it.create("InferletRun", "sleeps", {"inferlet": "sleeping", "model": "fake"})
            programs[it.namespace] = await begun(it, "sleeps")
        own.operator.kill()
        one.delete("InferletRun", "sleeps")
        one.delete("Inferlet", "sleeping")
        own.operator.start()
        async with tartlet.AsyncClient(f"unix:{run_dir}/runtime.sock") as client:
            async with asyncio.timeout(60):
                ended = await (await client.attach(programs[given[0]])).wait()
            assert ended.error is not None
            assert ended.error.name == "ProgramKilled"
            running = {info.program_id for info in await client.list()}
            names = {name: {e.name for e in await client.catalogue(tenant=name)} for name in (*given, namespace)}
            while "sleeping" in names[given[0]]:
                names[given[0]] = {e.name for e in await client.catalogue(tenant=given[0])}
        assert running == {programs[given[1]]}
        assert names == {given[0]: {"named"}, given[1]: {"named", "sleeping"}, given[2]: set(), namespace: set()}

        # the others were left alone throughout, the operator's own among them: it wasn't given
        for it in (other, own):
            assert [it.get(kind, n).get("status") for kind, n in KINDS] == [None] * 3
            assert it.core("GET", "apis/apps/v1", "deployments")["items"] == []
            assert it.core("GET", "api/v1", "events")["items"] == []
        assert own.core("GET", "apis/coordination.k8s.io/v1", "leases/tartlet-operator")["spec"]["holderIdentity"]


KINDS = (("EnginePool", "pool"), ("Inferlet", "named"), ("InferletRun", "r"))
