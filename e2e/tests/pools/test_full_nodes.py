"""Pools that use all the GPUs of the cluster, and engines that share one download."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.kube import Kube, Object, step, until
from e2e.cluster.provider import Own
from e2e.tests.conftest import pool, read_only
from e2e.tests.pools.test_pools import workers

FULL, SHARED = "full", "together"
GPU = "nvidia.com~1gpu"


@pytest.fixture
def one_gpu(kube: Kube) -> Iterator[None]:
    """Gives each node one GPU that nothing stands behind, as far as the scheduler knows."""
    nodes = [n["metadata"]["name"] for n in kube.items("nodes")]

    def patch(operation: str) -> None:
        for node in nodes:
            change = f'[{{"op":"{operation}","path":"/status/capacity/{GPU}"' + (
                ',"value":"1"}]' if operation == "add" else "}]"
            )
            kube("patch", f"node/{node}", "--subresource=status", "--type=json", "-p", change)

    patch("add")
    yield
    kube("delete", f"epool/{FULL}", "--ignore-not-found", "--timeout=60s")
    patch("remove")


def names(kube: Kube, pool_name: str) -> set[str]:
    return {p["metadata"]["name"] for p in workers(kube, pool_name)}


@pytest.mark.usefixtures("one_gpu")
def test_a_pool_that_has_every_gpu_rolls_where_an_engine_may_go_first(kube: Kube) -> None:
    size = len(kube.items("nodes"))
    resources = {"limits": {"nvidia.com/gpu": 1}}
    with step("pool on all GPUs"):
        kube.apply(pool(FULL, replicas=size, resources=resources))
        kube.wait(f"epool/{FULL}", "Ready")
    before = names(kube, FULL)
    with step("surge is stuck"):
        kube("patch", f"epool/{FULL}", "--type=merge", "-p", '{"spec":{"engine":{"maxBatchCommands":256}}}')
        until(lambda: bool(names(kube, FULL) - before), "a new pod waits for a GPU")
        assert before <= names(kube, FULL)
    with step("replace rolls"):
        kube("patch", f"epool/{FULL}", "--type=merge", "-p", '{"spec":{"rollout":"replace"}}')
        until(lambda: not before & names(kube, FULL), "the pods are new ones")
        kube.wait(f"epool/{FULL}", "Ready")


@pytest.fixture
def writable(kube: Kube) -> Iterator[str]:
    """A claim on a new directory of the node, which all pods may write."""
    if not isinstance(kube.cluster, Own):
        pytest.skip("the volume is a directory of this machine")
    with tempfile.TemporaryDirectory(prefix="tt-models-") as directory:
        Path(directory).chmod(0o777)
        volume, claim = read_only(kube.namespace, SHARED, Path(directory))
        for each in (volume, claim):
            each["spec"]["accessModes"] = ["ReadWriteMany"]
        kube.apply(volume, claim)
        yield SHARED
        kube("delete", f"epool/{SHARED}", "--ignore-not-found", "--timeout=60s")
        kube("delete", f"pvc/{SHARED}", f"pv/{kube.namespace}-{SHARED}", "--timeout=60s")


@pytest.mark.beyond_gate
@pytest.mark.usefixtures("unstartable")
def test_three_engines_of_a_pool_download_their_checkpoint_once(kube: Kube, demo_pool: str, writable: str) -> None:
    assert demo_pool
    packages = {"name": "packages", "mountPath": "/packages", "readOnly": True}
    python = {"name": "PYTHONPATH", "value": "/packages"}
    source = {"name": "source", "mountPath": "/source", "readOnly": True}
    script = "echo downloads; sleep 4; cp -r /source/demo/. $MODEL_DIR"
    init: Object = {"command": ["sh", "-c", script], "env": [python], "volumeMounts": [packages, source]}
    claims = {"source": "models", "packages": "packages"}
    template: Object = {
        "env": [python],
        "volumes": [{"name": n, "persistentVolumeClaim": {"claimName": c}} for n, c in claims.items()],
        "volumeMounts": [packages],
    }
    model = {"name": SHARED, "path": "demo", "volumeClaim": {"claimName": writable}, "init": init}
    engine = {"device": "cpu", "kvMemory": "auto", "threads": 1}
    limits = {"limits": {"memory": "1Gi"}, "requests": {"cpu": "100m", "memory": "300Mi"}}
    with step("three engines"):
        kube.apply(pool(SHARED, model=model, engine=engine, replicas=3, podTemplate=template, resources=limits))
        kube.wait(f"epool/{SHARED}", "Ready", 180)
    pods = workers(kube, SHARED)
    logs = [kube("logs", p["metadata"]["name"], "-c", "model") for p in pods]
    assert len(pods) == 3
    assert sum("downloads\n" in log for log in logs) == 1, logs
    assert all("is there" in log for log in logs), logs
