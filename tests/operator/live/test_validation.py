"""Objects that the API server refuses, with a message that names the field and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tartlet_operator.api import RESOURCES
from tests.operator.api_server import ApiServer, Refused
from tests.operator.objects import manifest, path

FAKE = {"model": {"name": "m"}, "engine": {"backend": "Fake"}}
CLAIM = {"name": "m", "volumeClaim": {"claimName": "c"}}
SHA = "sha256:" + "0" * 64

SIZES = {"numEmbeds": 2**26, "numSlots": 2**26, "maxBatchTokens": 2**20, "maxBatchCommands": 2**20}

BAD: list[tuple[str, str, dict[str, Any], str, str]] = [
    # kind, name, spec, what the message must name, what it must advise
    ("EnginePool", "a", {"model": {"name": "m"}}, "spec.model.volumeClaim, spec.model.init", "spec.model.image"),
    (
        "EnginePool",
        "a",
        {"model": {**CLAIM, "image": {"reference": "i"}}},
        "spec.model.volumeClaim, spec.model.init",
        "or else spec.model.image",
    ),
    (
        "EnginePool",
        "a",
        {"model": {**CLAIM, "init": {"image": "i", "command": ["get", "$(MODEL_DIR)"]}}},
        "spec.model.init.image",
        "the engine's image",
    ),
    (
        "EnginePool",
        "a",
        {"model": {**CLAIM, "init": {"command": ["get", "/models"]}}},
        "spec.model.init.command",
        "$(MODEL_DIR)",
    ),
    ("EnginePool", "a", {**FAKE, "rollout": "all"}, "spec.rollout", '"surge", "replace"'),
    ("EnginePool", "a", {**FAKE, "podTemplate": {"fsGroup": 0}}, "spec.podTemplate.fsGroup", "or equal to 1"),
    (
        "EnginePool",
        "a",
        {**FAKE, "resourceClaims": [{"name": "gpu", "resourceClaimName": "a", "resourceClaimTemplateName": "b"}]},
        "spec.resourceClaims",
        "exactly one",
    ),
    ("EnginePool", "a", {**FAKE, "resourceClaims": [{"name": "gpu"}]}, "spec.resourceClaims", "exactly one"),
    (
        "EnginePool",
        "a",
        {**FAKE, "resourceClaims": [{"name": "gpu", "resourceClaimName": n} for n in "ab"]},
        "spec.resourceClaims",
        "Duplicate value",
    ),
    (
        "EnginePool",
        "a",
        {**FAKE, "resourceClaims": [{"name": "gpu.1", "resourceClaimName": "a"}]},
        "spec.resourceClaims",
        "rename the claim",
    ),
    ("Inferlet", "a", {"source": {"inline": "x"}, "output": "file"}, "spec.output", '"status", "none"'),
    ("InferletRun", "a", {"inferlet": "i", "output": "None"}, "spec.output", '"status", "none"'),
    ("EnginePool", "a", {"model": CLAIM, "engine": {"backend": "Fake"}}, "spec.model.volumeClaim", "remove"),
    ("EnginePool", "a", {"model": CLAIM, "engine": {"device": "cuda"}}, "spec.engine.device", "nvidia.com/gpu: 1"),
    (
        "EnginePool",
        "a",
        {"model": CLAIM, "engine": {"device": "cuda"}, "resources": {"limits": {"nvidia.com/gpu": 0}}},
        "spec.engine.device",
        "nvidia.com/gpu: 1",
    ),
    ("EnginePool", "a", {**FAKE, "engine": {"backend": "Fake", "device": "tpu"}}, "spec.engine.device", "cpu, cuda"),
    (
        "EnginePool",
        "a",
        {**FAKE, "engine": {"backend": "Fake", "pageSize": 64}},
        "spec.engine.pageSize",
        "or equal to 32",
    ),
    (
        "EnginePool",
        "a",
        {**FAKE, "engine": {"backend": "Fake", "kvMemory": "lots"}},
        "spec.engine.kvMemory",
        "like 4Gi",
    ),
    ("EnginePool", "a", {**FAKE, "engine": {"backend": "Fake", "kvMemory": "1Ki"}}, "spec.engine.kvMemory", "at least"),
    ("EnginePool", "a", {**FAKE, "engine": {"backend": "Fake", "kvMemory": "2Ei"}}, "spec.engine.kvMemory", "at most"),
    *(
        ("EnginePool", "a", {**FAKE, "engine": {"hostKvMemory": wrong}}, "spec.engine.hostKvMemory", "like 4Gi")
        for wrong in ("much", "-1Gi", "2Ei")
    ),
    ("EnginePool", "a", {**FAKE, "engine": {"backend": "Jax"}}, "spec.engine.backend", '"Torch", "Fake"'),
    (
        "EnginePool",
        "a",
        {**FAKE, "podTemplate": {"env": [{"name": "A"}, {"name": "TARTLET_WORKER_ENGINE_ID", "value": "e"}]}},
        "spec.podTemplate.env",
        "Remove them",
    ),
    *(
        ("EnginePool", "a", {**FAKE, "podTemplate": template}, f"spec.podTemplate.{field}", "certificate is")
        for field, template in (
            ("volumes", {"volumes": [{"name": "tls", "secret": {"secretName": "anothers"}}]}),
            ("volumeMounts", {"volumeMounts": [{"name": "tls", "mountPath": "/copy"}]}),
            ("volumeMounts", {"volumeMounts": [{"name": "a", "mountPath": "/etc/tartlet/tls"}]}),
            ("volumeMounts", {"volumeMounts": [{"name": "a", "mountPath": "/etc/"}]}),
        )
    ),
    (
        "EnginePool",
        "a",
        {**FAKE, "podTemplate": {"env": [{"name": "TARTLET_WORKER_POOL", "value": "b/demo"}]}},
        "spec.podTemplate.env",
        "TARTLET_",
    ),
    ("EnginePool", "a", {**FAKE, "replicas": -1}, "spec.replicas", "greater than or equal to 0"),
    ("EnginePool", "a", {"model": {**CLAIM, "path": "../etc"}}, "spec.model.path", "relative"),
    *(
        ("EnginePool", "a", {"model": {**CLAIM, "adapters": adapters}}, "spec.model.adapters", told)
        for adapters, told in (
            ([{"name": "a:b", "path": "a"}], "rename the adapter"),
            ([{"name": "a", "path": "../a"}], "relative"),
            ([{"name": "a", "path": "a,b=/c"}], "relative"),
            ([{"name": "a", "path": "a\nb=/c"}], "relative"),
            ([{"name": "a", "path": "a"}, {"name": "a", "path": "b"}], "rename one"),
        )
    ),
    ("EnginePool", "a", {"model": {**CLAIM, "name": "-m"}}, "spec.model.name", "rename"),
    ("EnginePool", "a" * 60, FAKE, "metadata.name", "shorter name"),
    ("EnginePool", "a", {**FAKE, "drain": {"graceSeconds": 9999}}, "spec.drain.graceSeconds", "less than or equal"),
    ("EnginePool", "a", {**FAKE, "replica": 2}, 'unknown field "spec.replica"', "unknown field"),
    ("EnginePool", "a", {**FAKE, "tolerations": [{"kei": "a"}]}, 'unknown field "spec.tolerations[0].kei"', "unknown"),
    ("Inferlet", "a", {"source": {}}, "spec.source.inline", "exactly one"),
    ("Inferlet", "a", {"source": {"inline": "\u8a9e" * 500_000}}, "spec.source.inline", "spec.source.url"),
    (
        "Inferlet",
        "a",
        {"source": {"inline": "x", "configMap": {"name": "c", "key": "k"}}},
        "spec.source.configMap",
        "exactly one",
    ),
    ("Inferlet", "a", {"source": {"inline": "x"}, "language": "Wasm"}, "spec.source.inline", "binaryData"),
    (
        "Inferlet",
        "a",
        {"source": {"inline": "x"}, "model": "m", "pool": "p"},
        "spec.model and spec.pool",
        "at most one",
    ),
    (
        "Inferlet",
        "a",
        {"source": {"url": {"url": "https://[abc/x.py", "digest": SHA}}},
        "spec.source.url.url",
        "https://example.org",
    ),
    ("Inferlet", "a", {"source": {"inline": "x"}, "model": "a b"}, "spec.model", "an EnginePool serves"),
    ("InferletRun", "a", {"inferlet": "i", "model": "a b"}, "spec.model", "an EnginePool serves"),
    ("Inferlet", "a", {"source": {"url": {"url": "https://h/p"}}}, "spec.source.url.digest", "Required"),
    (
        "Inferlet",
        "a",
        {"source": {"url": {"url": "https://h/p", "digest": "md5:1"}}},
        "spec.source.url.digest",
        "sha256sum",
    ),
    (
        "Inferlet",
        "a",
        {"source": {"url": {"url": "file:///etc/passwd", "digest": SHA}}},
        "spec.source.url.url",
        "https://example.org",
    ),
    ("Inferlet", "a", {"source": {"inline": "x"}, "limits": {"memory": "1"}}, "spec.limits.memory", "256Mi"),
    ("Inferlet", "a", {"source": {"inline": "x"}, "limits": {"memory": "16Mi"}}, "spec.limits.memory", "at least 22Mi"),
    ("Inferlet", "a", {"source": {"inline": "x"}, "args": ["x"] * 200}, "spec.args", "at most 128"),
    (
        "Inferlet",
        "a",
        {"source": {"configMap": {"name": "c HTTP/1.1\r\n\r\nDELETE /x", "key": "k"}}},
        "spec.source.configMap.name",
        "lower-case letters",
    ),
    ("Inferlet", "a", {"source": {"inline": "x"}, "pool": "A B"}, "spec.pool", "kubectl get enginepools"),
    ("EnginePool", "a", {"model": {**CLAIM, "volumeClaim": {"claimName": "A_b"}}}, "claimName", "lower-case letters"),
    (
        "EnginePool",
        "a",
        {**FAKE, "podTemplate": {"imagePullSecrets": ["A_b"]}},
        "each of spec.podTemplate.imagePullSecrets",
        "name an object that exists",
    ),
    (
        "EnginePool",
        "a",
        {**FAKE, "resources": {"requests": {"cpu": "1" * 500_001}}},
        "spec.resources.requests.cpu",
        "more than 32 bytes",
    ),
    ("EnginePool", "a", {**FAKE, "resources": {"limits": {"cpu": -1}}}, "spec.resources.limits.cpu", "or equal to 0"),
    ("EnginePool", "a", {**FAKE, "resources": {"limits": {"cpu": "-1"}}}, "spec.resources.limits.cpu", "should match"),
    *(
        ("EnginePool", "a", {**FAKE, "engine": {"backend": "Fake", size: most + 1}}, f"spec.engine.{size}", str(most))
        for size, most in SIZES.items()
    ),
    ("InferletRun", "a", {"inferlet": "../pods"}, "spec.inferlet", "lower-case letters"),
    ("InferletRun", "a", {}, "spec.inferlet", "Required"),
    ("InferletRun", "a", {"inferlet": "i", "deadlineSeconds": 0}, "spec.deadlineSeconds", "greater than or equal to 1"),
    ("InferletRun", "a", {"inferlet": "i", "retries": 99}, "spec.retries", "less than or equal to 10"),
]


@pytest.mark.parametrize(("kind", "name", "spec", "field", "remedy"), BAD)
def test_a_bad_manifest_is_refused(
    api_server: ApiServer, kind: str, name: str, spec: dict[str, Any], field: str, remedy: str
) -> None:
    target = path("default", kind) + "?fieldValidation=Strict&dryRun=All"
    with pytest.raises(Refused) as refused:
        api_server.call("POST", target, manifest(kind, name, spec))
    assert refused.value.status in {400, 413, 422}
    assert field in refused.value.message
    assert remedy in refused.value.message


def test_the_examples_are_taken_as_they_are(api_server: ApiServer, namespace: str, repo: Path) -> None:
    for file in sorted((repo / "docs/examples").glob("*.yaml")):
        body = yaml.safe_load(file.read_text())
        api_server.call("POST", path(namespace, body["kind"]) + "?fieldValidation=Strict", body)


def test_the_server_fills_in_nested_defaults(api_server: ApiServer, namespace: str) -> None:
    made = api_server.call("POST", path(namespace, "EnginePool"), manifest("EnginePool", "p", {"model": CLAIM}))
    spec = made["spec"]
    assert (spec["replicas"], spec["drain"]["graceSeconds"], spec["startDeadlineSeconds"]) == (1, 30, 600)
    assert (spec["engine"]["backend"], spec["engine"]["pageSize"], spec["engine"]["kvMemory"]) == ("Torch", 16, "1Gi")
    assert spec["model"]["volumeClaim"]["readOnly"] is True


@pytest.mark.parametrize("amount", [2, "2", "500m", "1.5", "4Gi", "1e3", "1E", "2E-1", "1Ei"])
def test_every_form_of_a_quantity_is_accepted(api_server: ApiServer, amount: str | int) -> None:
    spec = {**FAKE, "resources": {"requests": {"memory": amount}}}
    api_server.call("POST", path("default", "EnginePool") + "?dryRun=All", manifest("EnginePool", "p", spec))


def test_what_is_immutable_stays(api_server: ApiServer, namespace: str) -> None:
    api_server.call("POST", path(namespace, "EnginePool"), manifest("EnginePool", "p", FAKE))
    patch = "application/merge-patch+json"
    with pytest.raises(Refused, match=r"spec.model.name is immutable: create another"):
        api_server.call("PATCH", path(namespace, "EnginePool", "p"), {"spec": {"model": {"name": "n"}}}, patch)
    api_server.call("POST", path(namespace, "InferletRun"), manifest("InferletRun", "r", {"inferlet": "i"}))
    with pytest.raises(Refused, match=r"spec is immutable: create another InferletRun"):
        api_server.call("PATCH", path(namespace, "InferletRun", "r"), {"spec": {"retries": 2}}, patch)


def test_a_pool_is_scaled_through_the_scale_subresource(api_server: ApiServer, namespace: str) -> None:
    api_server.call("POST", path(namespace, "EnginePool"), manifest("EnginePool", "p", FAKE))
    scale = api_server.call("GET", path(namespace, "EnginePool", "p") + "/scale")
    scale["spec"]["replicas"] = 3
    api_server.call("PUT", path(namespace, "EnginePool", "p") + "/scale", scale)
    assert api_server.call("GET", path(namespace, "EnginePool", "p"))["spec"]["replicas"] == 3


@pytest.mark.parametrize(
    ("ready", "runnable", "reason"),
    [
        (("True", "Catalogued"), ("True", "PoolReady"), None),
        (("True", "Catalogued"), ("False", "PoolNotFound"), "PoolNotFound"),
        (("False", "InvalidSource"), ("False", "InferletNotReady"), "InvalidSource"),
    ],
)
def test_an_inferlets_printed_reason_is_of_the_first_false_condition(
    api_server: ApiServer, namespace: str, ready: tuple[str, str], runnable: tuple[str, str], reason: str | None
) -> None:
    at = path(namespace, "Inferlet")
    api_server.call("POST", at, manifest("Inferlet", "i", {"source": {"inline": "pass"}}))
    conditions = [
        {"type": kind, "status": status, "reason": why, "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for kind, (status, why) in (("Ready", ready), ("Runnable", runnable))
    ]
    patch = {"status": {"conditions": conditions}}
    api_server.call("PATCH", f"{at}/i/status", patch, "application/merge-patch+json")
    table = api_server.call("GET", at, accept="application/json;as=Table;g=meta.k8s.io;v=v1")
    names = [column["name"] for column in table["columnDefinitions"]]
    assert table["rows"][0]["cells"][names.index("Reason")] == reason


def test_kubectl_shows_the_main_columns(api_server: ApiServer, namespace: str) -> None:
    api_server.call("POST", path(namespace, "EnginePool"), manifest("EnginePool", "p", FAKE))
    names = {}
    for resource in RESOURCES:
        definition = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{resource.plural}.tartlet.dev"
        spec = api_server.call("GET", definition)["spec"]
        names[resource.kind] = [c["name"] for c in spec["versions"][0]["additionalPrinterColumns"]]
        assert spec["names"]["categories"] == ["tartlet"]
        assert spec["names"]["shortNames"] == [resource.short]
    assert {"Reason", "Ready", "Model"} <= set(names["EnginePool"])
    assert {"Reason", "Ready", "Runnable"} <= set(names["Inferlet"])
    assert {"Phase", "Reason", "Tokens"} <= set(names["InferletRun"])
