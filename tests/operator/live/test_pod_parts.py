"""Pods with devices of a driver and models in images, by dry runs against a real API server.

An API server drops or refuses fields that it doesn't know or whose feature gate is off. So a Deployment that comes back
with the fields shows that they are named as the core API names them.
"""

from __future__ import annotations

from typing import Any

import pytest

from tartlet_operator.api import EnginePool
from tartlet_operator.api.meta import MANAGER, Meta
from tartlet_operator.machinery.worker_defaults import WorkerDefaults
from tartlet_operator.pools.manifests import deployment
from tartlet_operator.pools.subset import covers, leftover
from tests.operator.api_server import ApiServer
from tests.operator.objects import manifest, path

DEFAULTS = WorkerDefaults(image="w:1", pull_policy="IfNotPresent", control="c:7443")
IMAGE = {"reference": "registry.example.org/models:qwen", "pullPolicy": "IfNotPresent"}
CLAIMS = [
    {"name": "gpu", "resourceClaimTemplateName": "h100", "request": "one"},
    {"name": "fabric", "resourceClaimName": "shared"},
]


def dry_run(server: ApiServer, namespace: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Have the API server check a pool, then the Deployment and a pod of it; return the pod's spec as it would be."""
    stored = server.call("POST", path(namespace, "EnginePool") + "?dryRun=All", manifest("EnginePool", "p", spec))
    pool = EnginePool.model_validate(stored)
    wanted = deployment(pool.spec, Meta(namespace, "p", "uid-p", 1, deleting=False), DEFAULTS)
    at = f"/apis/apps/v1/namespaces/{namespace}/deployments/p"
    query = f"?dryRun=All&fieldManager={MANAGER}&fieldValidation=Strict"
    live = server.call("PATCH", at + query, wanted, "application/apply-patch+yaml")
    assert covers(live, wanted), "a field was dropped: the operator would apply the Deployment again and again"
    assert not leftover(live, wanted, MANAGER)
    template = live["spec"]["template"]
    pod = {"metadata": {"name": "p-0", "labels": template["metadata"]["labels"]}, "spec": template["spec"]}
    made = server.call("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All&fieldValidation=Strict", pod)
    found: dict[str, Any] = made["spec"]
    return found


def restrict(server: ApiServer, namespace: str) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    patch = {"metadata": {"labels": labels}}
    server.call("PATCH", f"/api/v1/namespaces/{namespace}", patch, "application/merge-patch+json")


def test_an_engine_gets_its_devices_from_claims_alone(api_server: ApiServer, namespace: str) -> None:
    restrict(api_server, namespace)
    model = {"name": "m", "volumeClaim": {"claimName": "c"}}
    spec = dry_run(api_server, namespace, {"model": model, "engine": {"device": "cuda"}, "resourceClaims": CLAIMS})
    assert [c["name"] for c in spec["resourceClaims"]] == ["gpu", "fabric"]
    assert spec["containers"][0]["resources"]["claims"] == [{"name": "gpu", "request": "one"}, {"name": "fabric"}]


@pytest.mark.parametrize(
    ("model", "source"),
    [
        ({"image": IMAGE}, {"image": IMAGE}),
        (
            {"volumeClaim": {"claimName": "c"}, "init": {"command": ["get", "$(MODEL_DIR)"]}},
            {"persistentVolumeClaim": {"claimName": "c"}},
        ),
    ],
)
def test_a_model_comes_from_an_image_or_a_shared_claim_in_a_restricted_namespace(
    api_server: ApiServer, namespace: str, model: dict[str, Any], source: dict[str, Any]
) -> None:
    restrict(api_server, namespace)
    template = {"fsGroup": 2000}
    engine = {"kvMemory": "auto"}
    spec = dry_run(
        api_server,
        namespace,
        {"model": {"name": "m", **model}, "engine": engine, "rollout": "replace", "podTemplate": template},
    )
    (models,) = [v for v in spec["volumes"] if v["name"] == "models"]
    assert models == {"name": "models", **source}
    assert spec["securityContext"]["fsGroup"] == 2000
