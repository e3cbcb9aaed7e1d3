"""EnginePools, leadership, probes and events against a real API server.

No kubelet runs here: the tests write the pods, and the engine behind one of them is real.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tartlet_operator.api.meta import POOL_LABEL
from tartlet_operator.pools.subset import covers
from tests.operator.api_server import ApiServer
from tests.operator.operator_process import ENGINE, Live, live

FAKE = {"model": {"name": "fake"}, "engine": {"backend": "Fake"}}
MERGE = "application/merge-patch+json"


def deployment(it: Live) -> dict[str, Any]:
    made: dict[str, Any] = it.core("GET", "apis/apps/v1", "deployments/pool")
    return made


def rolled_out(it: Live, replicas: int) -> None:
    """Write the counts that the Deployment's controller would write."""
    seen = {"observedGeneration": deployment(it)["metadata"]["generation"]}
    status = seen | dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas"), replicas)
    it.core("PATCH", "apis/apps/v1", "deployments/pool/status", {"status": status}, MERGE)


def add_pod(it: Live, name: str) -> None:
    template = deployment(it)["spec"]["template"]
    body = {"metadata": {"name": name, "labels": template["metadata"]["labels"]}, "spec": template["spec"]}
    it.core("POST", "api/v1", "pods", body)


def set_pod(it: Live, name: str, **status: Any) -> None:
    it.core("PATCH", "api/v1", f"pods/{name}/status", {"status": status}, MERGE)


def runs(it: Live, name: str, *, ready: bool) -> None:
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    set_pod(it, name, phase="Running", conditions=[condition], podIP="10.0.0.1")


async def serving(it: Live) -> None:
    """Create a pool of one engine that serves."""
    it.create("EnginePool", "pool", FAKE)
    await it.until_condition("EnginePool", "pool", "Ready", "False", "RollingOut")
    rolled_out(it, 1)
    add_pod(it, ENGINE)
    runs(it, ENGINE, ready=True)
    await it.until_condition("EnginePool", "pool", "Ready")


async def test_a_pool_from_its_manifest_to_serving_and_back(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    async with live(api_server, namespace, run_dir, "--worker-image=tartlet-worker:test") as it:
        it.create("Inferlet", "i", {"source": {"inline": "pass"}, "pool": "pool"})
        it.create("EnginePool", "pool", {**FAKE, "podTemplate": {"labels": {"team": "x"}}})
        starting = await it.until_condition("EnginePool", "pool", "Ready", "False", "RollingOut")
        assert starting["observedGeneration"] == 1
        made = deployment(it)
        assert made["spec"]["template"]["spec"]["containers"][0]["image"] == "tartlet-worker:test"
        assert made["metadata"]["ownerReferences"][0]["kind"] == "EnginePool"
        assert made["spec"]["template"]["metadata"]["labels"]["team"] == "x"
        assert {m["manager"] for m in made["metadata"]["managedFields"]} == {"tartlet-operator"}
        budget = it.core("GET", "apis/policy/v1", "poddisruptionbudgets/pool")
        assert budget["spec"]["maxUnavailable"] == 1

        rolled_out(it, 1)
        add_pod(it, ENGINE)
        set_pod(it, ENGINE, phase="Running")
        await it.until(lambda: it.get("EnginePool", "pool")["status"]["engines"][0:1] != [])
        assert it.get("EnginePool", "pool")["status"]["engines"][0]["state"] == "Loading"
        runs(it, ENGINE, ready=True)
        seen_s = await it.until(lambda: it.condition("EnginePool", "pool", "Ready")["status"] == "True")
        assert seen_s < 2.0
        status = it.get("EnginePool", "pool")["status"]
        assert (status["replicas"], status["readyReplicas"], status["updatedReplicas"]) == (1, 1, 1)
        engine = {"pod": ENGINE, "state": "Ready", "reason": "", "programs": 0, "node": "", "address": "10.0.0.1"}
        assert status["engines"] == [engine]
        assert "tartlet.dev/pool=pool" in status["selector"]
        scale = it.core("GET", "apis/tartlet.dev/v1alpha1", "enginepools/pool/scale")
        assert (scale["status"]["replicas"], scale["status"]["selector"]) == (1, status["selector"])

        # the inferlet says where it can run
        await it.until_condition("Inferlet", "i", "Runnable")
        assert it.get("Inferlet", "i")["status"]["pools"] == ["pool"]
        assert it.get("Inferlet", "i")["status"]["model"] == "fake"

        # an engine goes missing: trouble, and no rollout
        runs(it, ENGINE, ready=False)
        await it.until_condition("EnginePool", "pool", "Degraded", "True", "EnginesMissing")
        assert it.condition("EnginePool", "pool", "Progressing")["status"] == "False"
        waiting = {"name": "worker", "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}}
        container = {**waiting, "image": "i", "imageID": "", "ready": False, "restartCount": 3}
        set_pod(it, ENGINE, phase="Running", containerStatuses=[container])
        await it.until_condition("EnginePool", "pool", "Degraded", "True", "CrashLoopBackOff")
        set_pod(it, ENGINE, containerStatuses=[])
        runs(it, ENGINE, ready=True)
        await it.until_condition("EnginePool", "pool", "Ready")
        await it.until_condition("EnginePool", "pool", "Degraded", "False")
        await it.until(lambda: {"PoolReady", "PoolDegraded", "RolloutStarted"} <= set(it.events("pool")))


async def test_a_pool_follows_its_spec_and_undoes_other_changes(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    async with live(api_server, namespace, run_dir) as it:
        it.create("Inferlet", "i", {"source": {"inline": "pass"}, "pool": "pool"})
        await serving(it)

        # a new spec: not ready from the moment that the operator has seen it
        it.patch("EnginePool", "pool", {"spec": {"replicas": 2}})
        await it.until(lambda: it.condition("EnginePool", "pool", "Ready")["observedGeneration"] == 2)
        assert it.condition("EnginePool", "pool", "Ready")["status"] == "False"
        assert deployment(it)["spec"]["replicas"] == 2
        it.patch("EnginePool", "pool", {"spec": {"replicas": 1}})
        await it.until(lambda: deployment(it)["spec"]["replicas"] == 1)
        rolled_out(it, 1)
        await it.until_condition("EnginePool", "pool", "Ready")
        assert it.condition("EnginePool", "pool", "Ready")["observedGeneration"] == 3

        # another number of the same pods is no rollout, another image is one
        assert it.events("pool").count("RolloutStarted") == 1
        it.patch("EnginePool", "pool", {"spec": {"image": "another:1"}})
        await it.until(lambda: it.events("pool").count("RolloutStarted") == 2)
        rolled_out(it, 1)
        await it.until_condition("EnginePool", "pool", "Ready")

        # what others change of what we made is put right
        as_made = {"metadata": {"labels": {POOL_LABEL: "pool"}}, "spec": {"replicas": 1, "paused": False}}
        for label in ("another", None):
            change = {"metadata": {"labels": {POOL_LABEL: label}}, "spec": {"replicas": 7, "paused": True}}
            it.core("PATCH", "apis/apps/v1", "deployments/pool", change, MERGE)
            await it.until(lambda: covers(deployment(it), as_made))
        it.core("DELETE", "apis/policy/v1", "poddisruptionbudgets/pool")
        it.core("DELETE", "apis/apps/v1", "deployments/pool")
        await it.until(lambda: it.core("GET", "apis/policy/v1", "poddisruptionbudgets")["items"])
        await it.until(lambda: it.core("GET", "apis/apps/v1", "deployments")["items"])

        it.create("EnginePool", "gone", FAKE)
        it.delete("EnginePool", "gone")
        it.delete("EnginePool", "pool")
        await it.until_condition("Inferlet", "i", "Runnable", "False", "PoolNotFound")
        await it.until(lambda: {"PoolReady", "RolloutStarted"} <= set(it.events("pool")))


async def test_an_evicted_pod_is_the_reason_until_another_serves(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    async with live(api_server, namespace, run_dir) as it:
        it.create("EnginePool", "pool", FAKE)
        await it.until_condition("EnginePool", "pool", "Ready", "False", "RollingOut")
        rolled_out(it, 1)
        add_pod(it, "early")
        set_pod(it, "early", phase="Failed", reason="Evicted", message="The node was low on resource: memory.")
        told = await it.until_condition("EnginePool", "pool", "Degraded", "True", "Evicted")
        assert "pod early: The node was low on resource: memory. (see spec.resources)" in told["message"]
        add_pod(it, ENGINE)
        runs(it, ENGINE, ready=True)
        await it.until_condition("EnginePool", "pool", "Ready")
        await it.until_condition("EnginePool", "pool", "Degraded", "False", "AsExpected")
        status = it.get("EnginePool", "pool")["status"]
        assert ([e["pod"] for e in status["engines"]], status["replicas"]) == ([ENGINE], 1)
        scale = it.core("GET", "apis/tartlet.dev/v1alpha1", "enginepools/pool/scale")
        assert scale["status"]["replicas"] == 1


async def test_what_a_spec_no_longer_says_goes(api_server: ApiServer, namespace: str, run_dir: Path) -> None:
    more = {
        "nodeSelector": {"nobody": "has", "this": "label"},
        "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule"}],
        "resources": {"limits": {"cpu": "1"}},
        "minAvailable": 0,
        "podTemplate": {"labels": {"team": "x"}, "priorityClassName": "high"},
    }
    async with live(api_server, namespace, run_dir) as it:
        it.create("EnginePool", "pool", FAKE)
        await it.until_condition("EnginePool", "pool", "Ready", "False", "RollingOut")
        plain = deployment(it)["spec"]
        budget = it.core("GET", "apis/policy/v1", "poddisruptionbudgets/pool")["spec"]
        it.patch("EnginePool", "pool", {"spec": more})
        await it.until(lambda: deployment(it)["spec"]["template"]["spec"].get("priorityClassName") == "high")
        for removed in (
            {"nodeSelector": {"this": None}},
            {"nodeSelector": None},
            {"tolerations": [{"key": "a", "operator": "Exists"}]},
            {"tolerations": None},
            {"resources": None},
            {"podTemplate": {"labels": None}},
            {"podTemplate": None, "minAvailable": None},
        ):
            before = deployment(it)["metadata"]["generation"]
            it.patch("EnginePool", "pool", {"spec": removed})
            await it.until(lambda before=before: deployment(it)["metadata"]["generation"] > before)  # type: ignore[misc]
        assert deployment(it)["spec"] == plain
        await it.until(lambda: it.core("GET", "apis/policy/v1", "poddisruptionbudgets/pool")["spec"] == budget)


async def test_what_cannot_be_made_is_told_with_what_to_do(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    budget = {"metadata": {"name": "taken"}, "spec": {"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 1}}
    async with live(api_server, namespace, run_dir) as it:
        it.core("POST", "apis/policy/v1", "poddisruptionbudgets", budget)
        it.create("EnginePool", "taken", FAKE)
        taken = await it.until_condition("EnginePool", "taken", "Ready", "False", "ReconcileFailed")
        assert "PodDisruptionBudget taken" in taken["message"]
        assert "metadata.name" in taken["message"]
        assert it.core("GET", "apis/policy/v1", "poddisruptionbudgets/taken")["spec"] == budget["spec"]

        it.create("EnginePool", "pool", {**FAKE, "tolerations": [{"key": "a", "operator": "Perhaps"}]})
        refused = await it.until_condition("EnginePool", "pool", "Ready", "False", "ReconcileFailed")
        assert refused["message"].startswith("Invalid: Deployment.apps")
        assert "spec.template.spec.tolerations[0].operator" in refused["message"]
        assert "correct it in the pool's spec" in refused["message"]
        names = [b["metadata"]["name"] for b in it.core("GET", "apis/policy/v1", "poddisruptionbudgets")["items"]]
        assert names == ["taken"], "without a Deployment there is nothing to guard"
        it.patch("EnginePool", "pool", {"spec": {"tolerations": [{"kei": "a", "operator": "Exists"}]}})
        pruned = it.get("EnginePool", "pool")["spec"]["tolerations"]
        assert pruned == [{"operator": "Exists"}], "the API server drops what pods don't have"
        await it.until_condition("EnginePool", "pool", "Ready", "False", "RollingOut")

        failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "forbidden: why"}
        it.core("PATCH", "apis/apps/v1", "deployments/pool/status", {"status": {"conditions": [failure]}}, MERGE)
        await it.until_condition("EnginePool", "pool", "Ready", "False", "PodsRefused")
        degraded = await it.until_condition("EnginePool", "pool", "Degraded", "True", "PodsRefused")
        assert "forbidden: why (correct" in degraded["message"]


async def test_a_refused_edit_leaves_the_live_state_in_the_status(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    wrong = {"replicas": 2, "tolerations": [{"key": "a", "operator": "Perhaps"}]}
    async with live(api_server, namespace, run_dir) as it:
        it.create("Inferlet", "i", {"source": {"inline": "pass"}, "pool": "pool"})
        await serving(it)
        await it.until_condition("Inferlet", "i", "Runnable")
        before = deployment(it)["spec"]
        it.patch("EnginePool", "pool", {"spec": wrong})
        refused = await it.until_condition("EnginePool", "pool", "Degraded", "True", "ReconcileFailed")
        assert "spec.template.spec.tolerations[0].operator" in refused["message"]
        assert "1 of 2 engines take programs" in refused["message"]
        assert deployment(it)["spec"] == {**before, "replicas": 2}, "its size is followed all the same"
        await it.until(lambda: "ReconcileFailed" in it.events("pool"))

        # at rest nothing is written
        await it.until(lambda: it.get("EnginePool", "pool")["status"]["observedGeneration"] == 2)
        await asyncio.sleep(1.0)
        seen = [it.get("EnginePool", "pool")["metadata"], deployment(it)["metadata"]]
        await asyncio.sleep(2.0)
        now = [it.get("EnginePool", "pool")["metadata"], deployment(it)["metadata"]]
        assert [m["resourceVersion"] for m in now] == [m["resourceVersion"] for m in seen]

        it.core("DELETE", "api/v1", f"pods/{ENGINE}?gracePeriodSeconds=0")
        await it.until(lambda: it.get("EnginePool", "pool")["status"]["engines"] == [])
        assert it.get("EnginePool", "pool")["status"]["readyReplicas"] == 0
        await it.until_condition("Inferlet", "i", "Runnable", "False", "PoolNotReady")
        it.patch("EnginePool", "pool", {"spec": {"tolerations": None}})
        await it.until_condition("EnginePool", "pool", "Degraded", "False", "AsExpected")
        await it.until_condition("EnginePool", "pool", "Progressing", "True", "RollingOut")
        assert deployment(it)["spec"] == {**before, "replicas": 2}


async def test_a_draining_engine_is_recognised(api_server: ApiServer, namespace: str, run_dir: Path) -> None:
    async with live(api_server, namespace, run_dir) as it:
        await serving(it)
        it.core("PATCH", "api/v1", f"pods/{ENGINE}", {"metadata": {"finalizers": ["test/hold"]}}, MERGE)
        it.core("DELETE", "api/v1", f"pods/{ENGINE}")
        await it.until(lambda: it.get("EnginePool", "pool")["status"]["drainingReplicas"] == 1)
        assert it.get("EnginePool", "pool")["status"]["readyReplicas"] == 0
        it.core("PATCH", "api/v1", f"pods/{ENGINE}", {"metadata": {"finalizers": None}}, MERGE)
        await it.until(lambda: it.get("EnginePool", "pool")["status"]["engines"] == [])
        await it.until(lambda: {"EngineDraining", "EngineDrained"} <= set(it.events("pool")))


async def test_without_control_a_pool_says_that_nobody_knows(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    async with live(api_server, namespace, run_dir) as it:
        await serving(it)
        await it.stack.stop()
        await it.until_condition("EnginePool", "pool", "Ready", "Unknown", "ControlUnreachable")
        await it.until_condition("EnginePool", "pool", "Degraded", "Unknown", "ControlUnreachable")
        it.create("Inferlet", "i", {"source": {"inline": "pass"}})
        await it.until_condition("Inferlet", "i", "Ready", "Unknown", "ControlUnreachable")


async def test_a_pool_that_is_deleted_runs_nothing(api_server: ApiServer, namespace: str, run_dir: Path) -> None:
    async with live(api_server, namespace, run_dir) as it:
        it.create("Inferlet", "i", {"source": {"inline": "pass"}})
        await serving(it)
        await it.until_condition("Inferlet", "i", "Runnable")
        it.core("DELETE", "apis/tartlet.dev/v1alpha1", "enginepools/pool", {"propagationPolicy": "Foreground"})
        await it.until_condition("EnginePool", "pool", "Ready", "False", "Draining")
        await it.until_condition("Inferlet", "i", "Runnable", "False", "PoolNotReady")


@pytest.mark.slow
async def test_a_change_of_adapters_reaches_running_pods_and_makes_no_others(
    api_server: ApiServer, namespace: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = run_dir / "adapters"  # by the engine, as the kubelet would bring it
    followed.write_text("a=/models/a")
    monkeypatch.setenv("TARTLET_WORKER_ADAPTERS_FILE", str(followed))

    def adapters(*names: str) -> dict[str, Any]:
        return {"spec": {"model": {"adapters": [{"name": name, "path": name} for name in names]}}}

    async with live(api_server, namespace, run_dir) as it:

        def listed() -> str:
            found = it.core("GET", "api/v1", "configmaps/pool-adapters")
            assert found["metadata"]["ownerReferences"][0]["kind"] == "EnginePool"
            return str(found["data"]["list"])

        def generation() -> int:
            return int(deployment(it)["metadata"]["generation"])

        await serving(it)
        without = deployment(it)["spec"]["template"]
        it.patch("EnginePool", "pool", adapters("a"))
        await it.until(lambda: deployment(it)["spec"]["template"] != without)
        assert listed() == "a=/models/a\n"
        rolled_out(it, 1)
        await it.until_condition("EnginePool", "pool", "Ready")
        template, before = deployment(it)["spec"]["template"], generation()
        for names in (("a", "b"), (), ("b",)):
            it.patch("EnginePool", "pool", adapters(*names))
            lines = "".join(f"{name}=/models/{name}\n" for name in names)
            await it.until(lambda lines=lines: listed() == lines)  # type: ignore[misc]
        it.core("DELETE", "api/v1", "configmaps/pool-adapters")
        await it.until(lambda: "pool-adapters" in str(it.core("GET", "api/v1", "configmaps")))
        assert listed() == "b=/models/b\n"
        assert (deployment(it)["spec"]["template"], generation()) == (template, before)

        followed.write_text("b=/models/b\na:b=/models/c")
        told = await it.until_condition("EnginePool", "pool", "Degraded", "True", "AdaptersRefused")
        assert ENGINE in told["message"]
        assert "a:b=/models/c" in told["message"]
        assert it.condition("EnginePool", "pool", "Ready")["status"] == "True"
        followed.write_text("b=/models/b")
        await it.until_condition("EnginePool", "pool", "Degraded", "False")

        it.patch("EnginePool", "pool", {"spec": {"model": {"adapters": None}}})
        await it.until(lambda: deployment(it)["spec"]["template"] == without)


async def test_hundreds_of_pools_inferlets_and_runs_do_not_delay_each_other(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    async with live(api_server, namespace, run_dir, "--lease-duration-s=30") as it:  # the API server is busy
        for n in range(60):
            it.create("Inferlet", f"i{n}", {"source": {"inline": f"async def main():\n    return {n % 10}\n"}})
        for n in range(30):
            it.create("InferletRun", f"r{n}", {"inferlet": f"i{n}"})

        def done() -> bool:
            items = it.core("GET", "apis/tartlet.dev/v1alpha1", "inferletruns")["items"]
            return all(i.get("status", {}).get("phase") == "Succeeded" for i in items)

        await it.until(done, timeout_s=60)
        for n in (0, 7, 29):
            assert it.get("InferletRun", f"r{n}")["status"]["result"] == str(n % 10)
