"""The cluster, and a release of the chart in a namespace that enforces restricted pod security."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.images import Image
from e2e.cluster.kube import Kube, Object, step
from e2e.cluster.layout import ROOT
from e2e.cluster.provider import Cluster, Own, choose

RELEASE = "tartlet"
NAMESPACE = "e2e"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A cluster's own coming and going is tested before the others bring one up."""
    items.sort(key=lambda item: "test_lifecycle" not in item.nodeid)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The cluster that is up; one that is not is brought up, and down at the end."""
    found = choose()
    keep = isinstance(found, Own) and found.is_up()
    found.up()
    yield found
    if not keep:
        found.down()


@pytest.fixture(scope="session")
def image(cluster: Cluster) -> Image:
    """Tartlet's image, on the node."""
    with step("image"):
        return cluster.image()


def chart_values(image: Image, **more: Any) -> dict[str, Any]:
    """Values of the chart for this image, without pools."""
    repository, _, tag = image.name.rpartition(":")
    at = {"repository": repository, "tag": tag, "pullPolicy": "IfNotPresent"}
    return {"image": at, "workerImage": at, "enginePools": [], **more}


def install(kube: Kube, image: Image, **more: Any) -> None:
    """A namespace, restricted, and a release in it."""
    name = kube.namespace
    enforce = {"pod-security.kubernetes.io/enforce": "restricted"}
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": enforce}})
    chart = str(ROOT / "charts" / "tartlet")
    kube.helm("install", RELEASE, chart, "--wait", "--timeout", "120s", values=chart_values(image, **more))


@pytest.fixture(scope="session")
def kube(cluster: Cluster, image: Image) -> Iterator[Kube]:
    """A release that takes programs."""
    kube = Kube(cluster, NAMESPACE)
    with step("helm install"):
        install(kube, image)
    yield kube
    kube.helm("uninstall", RELEASE, "--wait", "--timeout", "60s")
    kube("delete", "namespace", NAMESPACE, "--timeout=60s")


@pytest.fixture(scope="session")
def fake_pool(kube: Kube) -> str:
    """A pool of fake engines."""
    with step("pool of fake engines"):
        kube.apply_file("docs/examples/enginepool-fake.yaml")
        kube.wait("epool/fake", "Ready")
    return "fake"


@pytest.fixture(scope="session")
def demo_pool(kube: Kube, cluster: Cluster) -> str:
    """A pool of torch engines with the demo model, both from read-only volumes."""
    if not isinstance(cluster, Own):
        pytest.skip("torch and the models come from this machine's own directories")
    import torch

    packages = Path(torch.__file__).resolve().parents[1]
    volumes = {"models": ROOT / "models", "packages": packages}
    kube.apply(*(o for name, path in volumes.items() for o in read_only(kube.namespace, name, path)))
    spec: Object = {
        "model": {"name": "demo", "path": "demo", "volumeClaim": {"claimName": "models"}},
        "engine": {"device": "cpu", "kvMemory": "64Mi", "threads": 1},
        "resources": {"requests": {"cpu": "200m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
        "drain": {"graceSeconds": 30},
        "podTemplate": {
            "env": [{"name": "PYTHONPATH", "value": "/packages"}],
            "volumes": [{"name": "packages", "persistentVolumeClaim": {"claimName": "packages", "readOnly": True}}],
            "volumeMounts": [{"name": "packages", "mountPath": "/packages", "readOnly": True}],
        },
    }
    with step("pool with the demo model"):
        pool = {"apiVersion": "tartlet.dev/v1alpha1", "kind": "EnginePool", "metadata": {"name": "demo"}, "spec": spec}
        kube.apply(pool)
        kube.wait("epool/demo", "Ready", 120)
    return "demo"


def read_only(namespace: str, name: str, path: Path) -> Iterator[Object]:
    """A directory of the node as a claim that pods may mount where hostPath is forbidden."""
    volume = f"{namespace}-{name}"
    shape: Object = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    yield {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": volume},
        "spec": shape
        | {
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": str(path), "type": "Directory"},
            "claimRef": {"namespace": namespace, "name": name},
        },
    }
    yield {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": shape | {"volumeName": volume, "resources": {"requests": {"storage": "1Gi"}}},
    }
