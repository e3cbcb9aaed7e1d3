"""Bad manifests: the API server refuses those that the schema can judge, a condition explains the others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import yaml

from e2e.cluster.artifacts.images import Image
from e2e.cluster.kube import Kube, Object, Refused, condition, step, until
from e2e.tests.conftest import pool
from e2e.tests.programs.test_answers import API, run
from e2e.tests.support.story import inferlet
from tests.operator.live.test_validation import BAD

NODE = {"name": "node", "hostPath": {"path": "/etc"}}
TORCH = {"backend": "Torch", "kvMemory": "64Mi"}
ELSEWHERE = {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "refusals-none", "key": "a"}}}
URL = {"url": "http://example.org/a.py", "digest": "sha256:" + "0" * 64}


class Case(NamedTuple):
    """A bad object and the condition that reports it: the reason, and the field and the remedy in its message."""

    wrong: Object
    says: str
    reason: str
    field: str
    remedy: str


def _pool(name: str, reason: str, field: str, remedy: str, **spec: object) -> Case:
    return Case(pool(f"refusals-{name}", **spec), "Ready", reason, field, remedy)


def cases(image: Image) -> Iterator[Case]:
    """Returns manifests that the API server accepts and that can't work."""
    no_command = {"name": "m", "init": {"image": image.name, "command": ["no-such-command"]}}
    no_claim = {"name": "m", "volumeClaim": {"claimName": "refusals-none"}}
    yield _pool("host", "PodsRefused", "restricted", "spec.podTemplate", podTemplate={"volumes": [NODE]})
    account = {"serviceAccountName": "refusals-none"}
    yield _pool("account", "PodsRefused", "refusals-none", "spec.podTemplate", podTemplate=account)
    yield _pool("config", "CreateContainerConfigError", "spec.podTemplate.env", "see", podTemplate={"env": [ELSEWHERE]})
    yield _pool("image", "InvalidImageName", "spec.image", "lowercase", image="Not An Image")
    yield _pool("huge", "Unschedulable", "spec.resources", "see", resources={"requests": {"memory": "10Ti"}})
    yield _pool("claim", "Unschedulable", "spec.model.volumeClaim", "see", engine=TORCH, model=no_claim)
    yield _pool(
        "command", "ModelInitFailed", "spec.model.init", "executable file not found", engine=TORCH, model=no_command
    )
    wrong = [{"key": "a", "operator": "Perhaps"}]
    yield _pool(
        "taint", "ReconcileFailed", "tolerations[0].operator", "correct it in the pool's spec", tolerations=wrong
    )
    taken = pool("tartlet-runtime")
    yield Case(taken, "Ready", "ReconcileFailed", "metadata.name", "give the pool another")
    syntax = inferlet("refusals-syntax", "", {"inline": "async def main(:\n    pass\n"})
    yield Case(syntax, "Ready", "InvalidSource", "line 1", "Correct")
    lost = inferlet("refusals-lost", "", {"configMap": {"name": "refusals-none", "key": "a.py"}})
    yield Case(lost, "Ready", "SourceMissing", "spec.source.configMap", "create it")
    foreign = inferlet("refusals-foreign", "", {"url": URL})
    yield Case(foreign, "Ready", "HostNotAllowed", "spec.source.url.url", "source_hosts")
    homeless = inferlet("refusals-homeless", "refusals-none", {"inline": "async def main():\n    pass\n"})
    yield Case(homeless, "Runnable", "PoolNotFound", "spec.pool", "create it")
    yield Case(run("refusals-nothing", "refusals-none"), "Succeeded", "InferletNotFound", "spec.inferlet", "create it")
    model = run("refusals-model", "refusals-homeless", model="refusals-none")
    yield Case(model, "Succeeded", "UnknownModel", "refusals-none", "model")


def test_the_api_server_refuses_each_kind_of_bad_manifest(kube: Kube) -> None:
    """Uses the definitions that the chart installed; each manifest comes with the field and remedy of its message."""
    named = [f"{name}-{n}" for n, (_, name, *_) in enumerate(BAD)]
    bodies = [
        {"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec}
        for name, (kind, _, spec, *_) in zip(named, BAD, strict=True)
    ]
    with step(f"{len(BAD)} kinds"), pytest.raises(Refused) as refused:
        kube("create", "--dry-run=server", "--validate=strict", "-f", "-", text=yaml.safe_dump_all(bodies))
    told = re.split(r"(?=Error from server \()", str(refused.value))[1:]
    assert len(told) == len(BAD) >= 20
    for name, (*_, field, remedy) in zip(named, BAD, strict=True):
        mine = [t for t in told if f'"{name}"' in t or "BadRequest" in t]
        assert any(field in t and remedy in t for t in mine), (name, field, remedy, mine)


def test_what_the_operator_alone_can_know_is_in_a_condition(
    kube: Kube, image: Image, fake_pool: str, unstartable: Object
) -> None:
    unstarted = Case(unstartable, "Ready", "PodUnstarted", "spec.podTemplate.volumes", "Secrets")
    there = [*cases(image), unstarted]
    kube.apply(*(case.wrong for case in there))
    try:
        with step(f"{len(there)} conditions"):
            for case in there:
                until(lambda case=case: _found(kube, case).get("reason") == case.reason, f"{case}")  # type: ignore[misc]
                told = _found(kube, case)
                assert told["status"] != "True"
                assert case.field in told["message"], (case, told)
                assert case.remedy in told["message"], (case, told)
        assert kube.get("deploy/tartlet-runtime")["metadata"]["labels"].get("tartlet.dev/pool") is None
    finally:
        for case in there:
            kube("delete", f"{case.wrong['kind']}/{case.wrong['metadata']['name']}", "--timeout=60s")


def _found(kube: Kube, case: Case) -> Object:
    return condition(kube.get(f"{case.wrong['kind']}/{case.wrong['metadata']['name']}"), case.says)
