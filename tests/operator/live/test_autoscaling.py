"""The operator scales a pool on its work, down to zero and back, against a real API server, control and engine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.tests.support.story import SLOW
from tests.operator.api_server import ApiServer, Refused
from tests.operator.live.test_pools import FAKE, add_pod, deployment, rolled_out, runs
from tests.operator.operator_process import ENGINE, Live, live

EXAMPLES = Path("docs/examples/autoscaling")


def replicas(it: Live) -> int:
    asked: int = it.get("EnginePool", "pool")["spec"]["replicas"]
    return asked


async def started(it: Live, pods: int) -> None:
    """Do what the cluster does once the operator has asked for so many engines; the first is the stack's."""
    await it.until(lambda: deployment(it)["spec"]["replicas"] == pods)
    rolled_out(it, pods)
    add_pod(it, ENGINE)
    runs(it, ENGINE, ready=True)


async def test_a_pool_goes_to_zero_and_comes_back_for_runs_that_wait(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    async with live(api_server, namespace, run_dir, engine_flags=(f"--pool={namespace}/pool",)) as it:
        scaling = {"minReplicas": 0, "maxReplicas": 3, "scaleDownSeconds": 3}
        it.create("EnginePool", "pool", {**FAKE, "replicas": 0, "autoscaling": scaling})
        it.create("Inferlet", "slow", {"source": {"inline": SLOW}, "pool": "pool", "args": ["6"]})
        for run in ("first", "second"):
            await it.until_condition("EnginePool", "pool", "Available", "False", "ScaledToZero")
            await asyncio.sleep(1.5)
            assert replicas(it) == 0, "nothing waits for it"
            it.create("InferletRun", run, {"inferlet": "slow"})
            took_s = await it.until(lambda: replicas(it) == 1)
            assert took_s < 5
            await started(it, 1)
            await it.until_condition("InferletRun", run, "Running")
            while it.get("InferletRun", run)["status"]["phase"] == "Running":
                assert replicas(it) == 1, "a program runs on it"
                await asyncio.sleep(0.2)
            await it.until_condition("InferletRun", run, "Succeeded")
            assert it.get("InferletRun", run)["status"]["attempts"] == 1
            ended_s = await it.until(lambda: replicas(it) == 0)
            assert ended_s > 1
            it.core("DELETE", "api/v1", f"pods/{ENGINE}?gracePeriodSeconds=0")
            await it.until(lambda: deployment(it)["spec"]["replicas"] == 0)
            rolled_out(it, 0)
        assert it.events("pool").count("PoolScaled") == 4


async def test_more_work_brings_engines_until_the_bound_and_a_hand_moves_nothing_beyond(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    """A prompt of 6,000 tokens for each program takes 30 s of device time; so much waits, and at last none."""
    slow = ("--fake-token-s=0.002", "--max-batch-tokens=64")
    async with live(api_server, namespace, run_dir, engine_flags=(f"--pool={namespace}/pool", *slow)) as it:
        scaling = {"minReplicas": 1, "maxReplicas": 3, "targetWaitingMilliseconds": 1000, "scaleDownSeconds": 3}
        it.create("EnginePool", "pool", {**FAKE, "autoscaling": scaling})
        await it.until_condition("EnginePool", "pool", "Ready", "False", "RollingOut")
        await started(it, 1)
        await it.until_condition("EnginePool", "pool", "Ready")
        prompt = "from inferlet import Context, get_model\nasync def main():\n"
        prompt += "    async with Context(await get_model()) as ctx:\n        ctx.fill('ab ' * 1500)\n"
        prompt += "        return len([p async for p in ctx.generate(max_tokens=1)])\n"
        it.create("Inferlet", "long", {"source": {"inline": prompt}, "pool": "pool"})
        for n in range(3):
            it.create("InferletRun", f"r{n}", {"inferlet": "long"})
        await it.until(lambda: replicas(it) == 3, 30)
        it.patch("EnginePool", "pool", {"spec": {"replicas": 7}}, "/scale")
        await it.until(lambda: replicas(it) == 3)
        for n in range(3):
            await it.until_condition("InferletRun", f"r{n}", "Succeeded", timeout_s=60)
        await it.until(lambda: replicas(it) == 1, 30)


async def test_bounds_that_make_no_sense_are_refused(api_server: ApiServer, namespace: str, run_dir: Path) -> None:
    for wrong in ({"minReplicas": 2, "maxReplicas": 1}, {"maxReplicas": 0}, {"minReplicas": 0}):
        body = {"apiVersion": "tartlet.dev/v1alpha1", "kind": "EnginePool", "metadata": {"name": "p"}}
        path = f"/apis/tartlet.dev/v1alpha1/namespaces/{namespace}/enginepools"
        with pytest.raises(Refused) as refused:
            api_server.call("POST", path, {**body, "spec": {**FAKE, "autoscaling": wrong}})
        assert refused.value.status == 422


def test_the_example_of_a_horizontal_pod_autoscaler_is_taken(api_server: ApiServer, namespace: str) -> None:
    for body in yaml.safe_load_all((EXAMPLES / "hpa.yaml").read_text()):
        path = f"/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers"
        made = api_server.call("POST", f"{path}?dryRun=All&fieldValidation=Strict", body)
        assert made["spec"]["scaleTargetRef"]["kind"] == "EnginePool"


def test_the_example_for_keda_is_taken(api_server: ApiServer, namespace: str) -> None:
    """The definition has the fields of KEDA's documentation that the example may use, and no others."""
    text = {"type": "string"}
    number = {"type": "integer", "minimum": 0}
    trigger = fields(type=text, metadata={"type": "object", "additionalProperties": text})
    spec = fields(
        scaleTargetRef=fields(apiVersion=text, kind=text, name=text),
        triggers={"type": "array", "items": trigger},
        **dict.fromkeys(("minReplicaCount", "maxReplicaCount", "pollingInterval", "cooldownPeriod"), number),
    )
    api_server.define(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "scaledobjects.keda.sh"},
            "spec": {
                "group": "keda.sh",
                "scope": "Namespaced",
                "names": {"plural": "scaledobjects", "singular": "scaledobject", "kind": "ScaledObject"},
                "versions": [
                    {
                        "name": "v1alpha1",
                        "served": True,
                        "storage": True,
                        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}},
                    }
                ],
            },
        }
    )
    for body in yaml.safe_load_all((EXAMPLES / "keda.yaml").read_text()):
        path = f"/apis/keda.sh/v1alpha1/namespaces/{namespace}/scaledobjects"
        made = api_server.call("POST", f"{path}?dryRun=All&fieldValidation=Strict", body)
        assert made["spec"]["scaleTargetRef"]["kind"] == "EnginePool"


def fields(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties]}
