"""Pools with a model from an init step: the pool reports what goes wrong, and a corrected spec repairs the pool."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cluster.artifacts.images import Image
from e2e.cluster.kube import Kube, Object, condition, step, until
from e2e.cluster.watch import Record, recording
from e2e.tests.conftest import pool
from e2e.tests.pools.test_pools import workers
from e2e.tests.programs.test_answers import run
from e2e.tests.support.story import inferlet

POOL = "fetched"
UNHEARD = "unheard"
COPY = "cp -r /source/demo /models/demo"
POLITE = {"name": "polite", "path": "demo/adapters/polite"}
ASKS_TWICE = '''
"""Answers without an adapter, then under the first adapter that is offered."""

import asyncio

from inferlet import Context, get_all_adapters


async def answer(adapter=None):
    async with Context(adapter=adapter) as ctx:
        ctx.chat("What is 374+588?")
        print(await ctx.generate_until(max_tokens=64), flush=True)


async def main():
    await answer()
    while not (offered := await get_all_adapters()):
        await asyncio.sleep(0.2)
    await answer(offered[0])
'''


pytestmark = pytest.mark.usefixtures("unstartable")


@pytest.fixture(scope="module", autouse=True)
def gone_at_the_end(kube: Kube, demo_pool: str) -> Iterator[None]:
    """Uses the claims of the demo pool, whose model programs get by default."""
    assert demo_pool
    yield
    kube("delete", f"epool/{POOL}", "ilet/fetched", "ilet/asks-twice", "--ignore-not-found", "--timeout=60s")


def fetched(image: Image, script: str, *adapters: Object) -> Object:
    """A pool of one torch engine. A script copies the model from a volume that the engine itself doesn't mount."""
    source = {"name": "source", "mountPath": "/source", "readOnly": True}
    init: Object = {"image": image.name, "command": ["sh", "-c", script], "volumeMounts": [source]}
    claims = {"source": "models", "packages": "packages"}
    return pool(
        POOL,
        model={"name": POOL, "path": "demo", "init": init | {"sizeLimit": "100Mi"}, "adapters": [*adapters]},
        engine={"device": "cpu", "kvMemory": "64Mi", "threads": 1},
        podTemplate={
            "env": [{"name": "PYTHONPATH", "value": "/packages"}],
            "volumes": [{"name": n, "persistentVolumeClaim": {"claimName": c}} for n, c in claims.items()],
            "volumeMounts": [{"name": "packages", "mountPath": "/packages", "readOnly": True}],
        },
    )


def said(kube: Kube, name: str, kind: str) -> Object:
    """Returns a condition of a pool."""
    return condition(kube.get(f"epool/{name}"), kind)


def newest(kube: Kube, name: str = POOL) -> Object:
    """Returns the pool's youngest pod; an older pod without a model stays until another pod serves."""
    return max(workers(kube, name), key=lambda p: str(p["metadata"]["creationTimestamp"]))


def restarts(pod: Object) -> int:
    """Returns the restarts of the container that restarted most."""
    kinds = ("initContainerStatuses", "containerStatuses")
    return max((c["restartCount"] for kind in kinds for c in pod["status"].get(kind, ())), default=0)


def states(record: Record, pod: Object) -> list[str]:
    """Returns the pool's successive reports on a pod's engine."""
    found: list[str] = []
    for each in record.seen:
        for engine in (each.body or {}).get("status", {}).get("engines", ()):
            if engine["pod"] == pod["metadata"]["name"] and found[-1:] != [engine["state"]]:
                found.append(engine["state"])
    return found


@pytest.mark.parametrize(
    ("script", "reason", "message"),
    [
        ("echo no such model: demo >&2; exit 3", "ModelInitFailed", "spec.model.init: no such model: demo"),
        ("mkdir /models/other", "CheckpointMissing", "spec.model.path"),
        (f"{COPY}; truncate -s 9999 /models/demo/model.safetensors", "CheckpointBroken", "model.safetensors"),
    ],
)
def test_a_model_that_cannot_be_had_is_told_and_stays_told(
    kube: Kube, image: Image, script: str, reason: str, message: str
) -> None:
    kube.apply(fetched(image, script))
    with step(reason):
        until(lambda: said(kube, POOL, "Ready").get("reason") == reason, f"the pool says {reason}")
    with recording(kube, {"pool": [f"epool/{POOL}"]}) as record:
        until(lambda: restarts(newest(kube)) > 0, "it is tried again")
        until(lambda: "restarted" in said(kube, POOL, "Ready")["message"], "the pool says so")
    for kind, status in (("Ready", "False"), ("Degraded", "True")):
        assert record.history("pool", POOL, kind) == [status], kind
        found = said(kube, POOL, kind)
        assert (found["reason"], found["status"]) == (reason, status)
        assert message in found["message"], found
    assert "Loading" not in states(record, newest(kube))  # the pool distinguishes this from a broken engine
    warned = [e["message"] for e in kube.items("events") if (e["reason"], e["type"]) == ("PoolDegraded", "Warning")]
    assert any(reason in m and message in m for m in warned), warned


def test_its_spec_mended_it_loads_and_answers(kube: Kube, image: Image) -> None:
    with step("pool with a model that an init step brought"), recording(kube, {"pool": [f"epool/{POOL}"]}) as record:
        kube.apply(fetched(image, COPY))
        kube.wait(f"epool/{POOL}", "Ready", 120)
    made = newest(kube)
    assert states(record, made)[-2:] == ["Loading", "Ready"], states(record, made)
    assert restarts(made) == 0
    assert said(kube, POOL, "Degraded")["status"] == "False"
    source = {"configMap": {"name": "fetched", "key": "text_completion.py"}}
    kube("create", "configmap", "fetched", "--from-file=inferlets/std/text_completion.py")
    kube.apply(inferlet("fetched", POOL, source))
    kube.wait("ilet/fetched", "Runnable")
    kube.apply(run("fetched", "fetched", args=["--prompt", "374+588=", "--max-tokens", "64"], deadlineSeconds=60))
    with step("run"):
        kube.wait("irun/fetched", "Succeeded")
    assert "962" in kube.get("irun/fetched")["status"]["output"]


def test_a_listed_adapter_serves_a_program_that_runs_and_no_pod_is_made_anew(kube: Kube, image: Image) -> None:
    kube.apply(fetched(image, COPY), inferlet("asks-twice", POOL, {"inline": ASKS_TWICE}), run("asks", "asks-twice"))
    kube.wait(f"epool/{POOL}", "Ready", 120)
    until(lambda: kube.get("irun/asks").get("status", {}).get("phase") == "Running", "the program runs")
    (before,) = workers(kube, POOL)
    with step("adapter"):
        kube.apply(fetched(image, COPY, POLITE))
        kube.wait("irun/asks", "Succeeded")
    plain, polite = kube.get("irun/asks")["status"]["output"].splitlines()
    assert plain.endswith("962")
    assert polite == f"{plain} At your service!"
    (after,) = workers(kube, POOL)
    assert (after["metadata"]["uid"], restarts(after)) == (before["metadata"]["uid"], restarts(before))


@pytest.mark.beyond_gate
def test_an_engine_that_never_takes_programs_is_told_from_one_that_loads(kube: Kube) -> None:
    """The engine runs and waits for a control that doesn't exist, as a loading engine does up to its deadline."""
    elsewhere = "import os\nos.environ['TARTLET_WORKER_CONTROL'] = 'tartlet-nowhere:7443'\n"
    kube("create", "configmap", "unheard", f"--from-literal=sitecustomize.py={elsewhere}")
    nowhere = {
        "env": [{"name": "PYTHONPATH", "value": "/unheard"}],
        "volumes": [{"name": "unheard", "configMap": {"name": "unheard"}}],
        "volumeMounts": [{"name": "unheard", "mountPath": "/unheard"}],
    }
    kube.apply(pool(UNHEARD, startDeadlineSeconds=10, drain={"graceSeconds": 0}, podTemplate=nowhere))
    with step("EngineNotStarted"), recording(kube, {"pool": [f"epool/{UNHEARD}"]}) as record:
        until(lambda: said(kube, UNHEARD, "Degraded").get("reason") == "EngineNotStarted", "the pool says so")
        until(lambda: said(kube, UNHEARD, "Ready")["message"].count("restarted") > 0, "it is tried again")
    assert states(record, newest(kube, UNHEARD))[-2:] == ["Loading", "Broken"]
    assert record.history("pool", UNHEARD, "Degraded")[-2:] == ["False", "True"]
    assert "spec.startDeadlineSeconds" in said(kube, UNHEARD, "Ready")["message"]
    with step("mended"):
        kube.apply(pool(UNHEARD, startDeadlineSeconds=10, drain={"graceSeconds": 0}))
        kube.wait(f"epool/{UNHEARD}", "Ready")
    kube("delete", f"epool/{UNHEARD}", "--timeout=60s")
