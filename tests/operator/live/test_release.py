"""The pools of a release's values, and its uninstall, against a real API server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from e2e.tests.support.story import SLOW
from tests.operator.api_server import ApiServer
from tests.operator.live.test_pools import FAKE, MERGE, serving
from tests.operator.operator_process import Live, live

RELEASE = "r-pools"
DRAIN = "tartlet.dev/drain"
FLAG = f"--release-pools={RELEASE}"


def pools(**specs: dict[str, Any]) -> dict[str, Any]:
    """Return the release's ConfigMap as the chart renders it."""
    given = [{"name": name, "labels": {"team": "x"}, "annotations": {}, "spec": spec} for name, spec in specs.items()]
    return {"metadata": {"name": RELEASE}, "data": {"pools.json": json.dumps(given)}}


def install(it: Live, **specs: dict[str, Any]) -> None:
    it.core("POST", "api/v1", "configmaps", pools(**specs))


def upgrade(it: Live, **specs: dict[str, Any]) -> None:
    it.core("PATCH", "api/v1", f"configmaps/{RELEASE}", pools(**specs), MERGE)


def release(it: Live) -> dict[str, Any]:
    """Return the metadata of the release's ConfigMap, empty if it has gone."""
    found = it.core("GET", "api/v1", "configmaps")["items"]
    return next((o["metadata"] for o in found if o["metadata"]["name"] == RELEASE), {})


async def test_pools_follow_the_values_and_keep_what_others_wrote(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    other = {"model": {"name": "other"}, "engine": {"backend": "Fake"}}
    async with live(api_server, namespace, run_dir, FLAG) as it:
        install(it, a=FAKE, b=other)
        await it.until(lambda: it.exists("EnginePool", "a") and it.exists("EnginePool", "b"))
        made = it.get("EnginePool", "a")["metadata"]
        assert made["labels"] == {"team": "x"}
        assert made["ownerReferences"][0]["uid"] == release(it)["uid"]
        it.patch("EnginePool", "a", {"spec": {"replicas": 3}})  # as `kubectl scale` does
        upgrade(it, a={**FAKE, "startDeadlineSeconds": 77})
        await it.until(lambda: it.get("EnginePool", "a")["spec"].get("startDeadlineSeconds") == 77)
        assert it.get("EnginePool", "a")["spec"]["replicas"] == 3
        await it.until(lambda: not it.exists("EnginePool", "b"))
        it.delete("EnginePool", "a")
        await it.until(lambda: it.exists("EnginePool", "a"), 5)
        assert it.get("EnginePool", "a")["metadata"]["uid"] != made["uid"]


async def test_what_cannot_be_made_is_said_until_it_can(api_server: ApiServer, namespace: str, run_dir: Path) -> None:
    async with live(api_server, namespace, run_dir, FLAG) as it:
        it.create("EnginePool", "mine", FAKE)
        install(it, mine=FAKE, bad={**FAKE, "replicas": -1})

        def told() -> dict[str, str]:
            text = (release(it).get("annotations") or {}).get("tartlet.dev/refused", "{}")
            return dict(json.loads(text))

        await it.until(lambda: set(told()) == {"mine", "bad"})
        assert "replicas" in told()["bad"]
        assert "ownerReferences" not in it.get("EnginePool", "mine")["metadata"]
        await it.until(lambda: it.events(RELEASE) == ["PoolRefused"] * 2)
        upgrade(it, bad=FAKE)
        await it.until(lambda: it.exists("EnginePool", "bad") and not told())


async def test_an_uninstall_waits_for_the_operator_to_free_every_pool(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    """The pool of the values drains until the test removes a finalizer: no garbage collector runs here."""
    async with live(api_server, namespace, run_dir, FLAG, engine_flags=(f"--pool={namespace}/pool",)) as it:
        install(it, made=FAKE)
        await it.until(lambda: it.exists("EnginePool", "made"))
        await serving(it)
        assert "finalizers" not in release(it)
        it.create("Inferlet", "slow", {"source": {"inline": SLOW}, "args": ["600"]})
        it.create("InferletRun", "r", {"inferlet": "slow"})
        await it.until(lambda: it.get("EnginePool", "pool")["metadata"].get("finalizers") == [DRAIN])
        assert release(it)["finalizers"] == [DRAIN]
        it.patch("EnginePool", "made", {"metadata": {"finalizers": ["example.org/drains"]}})
        it.core("DELETE", "api/v1", f"configmaps/{RELEASE}")
        await it.until(lambda: "deletionTimestamp" in it.get("EnginePool", "made")["metadata"])
        await it.until(lambda: "finalizers" not in it.get("EnginePool", "pool")["metadata"])
        assert release(it), "the pool of the values still drains"
        it.patch("EnginePool", "made", {"metadata": {"finalizers": []}})
        await it.until(lambda: not release(it))
        assert "finalizers" not in it.get("EnginePool", "pool")["metadata"]
        it.core("PATCH", "api/v1", "pods/pool-pod-0", {"metadata": {"labels": {"touched": "yes"}}}, MERGE)
        it.patch("EnginePool", "pool", {"spec": {"startDeadlineSeconds": 77}})
        await it.until(lambda: it.condition("EnginePool", "pool", "Ready")["observedGeneration"] == 2)
        assert "finalizers" not in it.get("EnginePool", "pool")["metadata"], "its programs keep it no more"
        it.operator.stop()
        it.delete("EnginePool", "pool")
        assert not it.exists("EnginePool", "pool")
