"""Fixtures: the cluster, and a release of the chart in a namespace that enforces restricted pod security.

Fixtures last for the whole run, so a test leaves them as it found them:

- `cluster`: the cluster itself. A test that kills components, freezes containers or lists connections needs
  `isinstance(cluster, Own)`, and is skipped otherwise.
- `image`: Tartlet's image (target `base`), present on the nodes.
- `kube`: namespace `e2e` with a running release `tartlet`: `kube("get", "pods")`, `kube.apply(...)`, `kube.wait(...)`.
- `fake_pool`, `demo_pool`: names of Ready pools in it, of fake engines and of torch engines with the demo model. Don't
  change them; a test that scales or breaks a pool applies one of its own (`pool(name)`).
- `second`: another namespace, `e2e-other`, with its own release, for one module.

`install` and `chart_values` are for tests with their own release. A namespace called `e2e-...` is removed with the
others. Name objects after the test that makes them.

Modules run in the order of `TURNS`: `test_lifecycle` first, because it needs a machine without a cluster;
`test_refusals` after `pools`, because a node is given a while to fail the pool `unstartable`; `test_releases` late,
because it removes the release; `test_traffic` last, because it judges the connections of all other tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.artifacts.images import Image
from e2e.cluster.kube import Kube, Object, Refused, step
from e2e.cluster.layout import ROOT
from e2e.cluster.provider import Cluster, Given, Own, choose
from e2e.tests.support.traffic import Traffic, recorded

RELEASE = "tartlet"
NAMESPACE = "e2e"
OTHER = "e2e-other"
CHART = str(ROOT / "charts" / "tartlet")
MARK = "tartlet.dev/e2e"
"""Label of objects that the tests make outside their releases, so that the next run finds them."""

VALUES_POOL = "from-values"
"""Name of a pool in the main release's values, without engines."""

PASSING = {
    *("events", "events.events.k8s.io", "componentstatuses"),
    *("endpoints", "endpointslices.discovery.k8s.io", "ipaddresses.networking.k8s.io"),  # of Services
}
"""Resources that Kubernetes itself makes and removes."""

LEAN: Object = {"operator": {"replicas": 1}}
"""Values of a second release on a small machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts modules in the order of `TURNS`."""
    items.sort(key=lambda item: turn(item.nodeid))


TURNS = (
    "e2e/tests/harness/",
    "e2e/tests/programs/test_answers.py",
    "e2e/tests/programs/test_cli.py",
    "e2e/tests/programs/test_time_travel.py",
    "e2e/tests/programs/test_given.py",
    "e2e/tests/programs/test_runs.py",
    "e2e/tests/releases/test_chart.py",
    "e2e/tests/releases/test_plain.py",
    "e2e/tests/releases/test_installs.py",
    "e2e/tests/pools/",
    "e2e/tests/programs/test_refusals.py",
    "e2e/tests/security/test_identities.py",
    "e2e/tests/security/test_safety.py",
    "e2e/tests/security/test_sandbox.py",
    "e2e/tests/security/test_namespaces.py",
    "e2e/tests/security/test_issuer.py",
    "e2e/tests/releases/test_nothing_lost.py",
    "e2e/tests/releases/test_releases.py",
    "e2e/tests/security/test_traffic.py",
)
"""Beginnings of test ids, in the order in which these tests run. Tests outside `e2e/tests` run before them."""


def turn(nodeid: str) -> int:
    """Returns the place of a test in the order."""
    if not nodeid.startswith("e2e/tests/"):
        return -1
    found = next((n for n, start in enumerate(TURNS) if nodeid.startswith(start)), None)
    if found is None:
        raise pytest.UsageError(f"{nodeid} has no place in TURNS of e2e/tests/conftest.py: name its module there")
    return found


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The running cluster. If none is up, the fixture brings one up, and takes it down at the end."""
    found = choose()
    keep = found.is_up()
    try:
        found.up()
        if keep:
            clear(found)
        yield found
        if keep:
            clear(found)
    finally:
        if not keep:
            found.down()


def clear(cluster: Cluster) -> None:
    """Removes objects that an earlier run of the tests left in a cluster that stays up, and no other objects."""
    kube = Kube(cluster, NAMESPACE)
    for namespace in kube("get", "namespaces", "-l", MARK, "-o", "name").split():
        each = Kube(cluster, namespace.partition("/")[2])
        for release in each.helm("list", "--all", "-q").split():
            each.helm("uninstall", release, "--wait", "--timeout", "60s")
        each("delete", namespace, "--timeout=60s")
    kube("delete", "persistentvolumes", "-l", MARK, "--timeout=60s")
    definitions = {d["metadata"]["name"]: d for d in kube.items("crds") if d["spec"]["group"] == "tartlet.dev"}
    others = isinstance(cluster, Given) and [name for name, found in definitions.items() if not _of_tests(found)]
    if others:  # removing a definition removes all objects of its kind
        pytest.exit(f"the cluster has {', '.join(others)} already: the tests need one without Tartlet", 1)
    if definitions:
        kube("delete", "crds", *definitions, "--timeout=60s")


def _of_tests(definition: Object) -> bool:
    """Whether a release of the tests made a CRD."""
    owner = (definition["metadata"].get("annotations") or {}).get("meta.helm.sh/release-namespace", "")
    return owner == NAMESPACE or str(owner).startswith(f"{NAMESPACE}-")


def make_namespace(kube: Kube) -> None:
    """Makes a namespace that enforces restricted pod security and is removed with the others, unless it exists.

    Raises:
        Refused: The namespace exists and doesn't belong to the tests.
    """
    if f"namespace/{kube.namespace}" in kube("get", "namespaces", "-l", MARK, "-o", "name").split():
        return
    labels = {"pod-security.kubernetes.io/enforce": "restricted", MARK: "true"}
    body: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": kube.namespace, "labels": labels}}
    kube("create", "-f", "-", text=json.dumps(body))


@pytest.fixture(scope="session")
def image(cluster: Cluster) -> Image:
    """Tartlet's image, present on the nodes."""
    with step("image"):
        return cluster.image()


def chart_values(image: Image, **more: Any) -> dict[str, Any]:
    """Returns values of the chart for this image, without pools unless `more` names some."""
    repository, _, tag = image.name.rpartition(":")
    at = {"repository": repository, "tag": tag, "pullPolicy": "IfNotPresent"}
    return {"image": at, "workerImage": at, "enginePools": [], **more}


def install(kube: Kube, image: Image, **more: Any) -> None:
    """Makes a restricted namespace and installs a release in it."""
    make_namespace(kube)
    kube.helm("install", RELEASE, CHART, "--wait", "--timeout", "180s", values=chart_values(image, **more))


def everything(kube: Kube, *selection: str, namespaced: bool) -> set[str]:
    """Returns all objects of a namespace, or all objects without a namespace, as `kind/name`, except passing ones."""
    listed = kube("api-resources", "--verbs=list", f"--namespaced={str(namespaced).lower()}", "-o", "name").split()
    kinds = ",".join(sorted(set(listed) - PASSING))
    return set(kube("get", kinds, "-o", "name", "--ignore-not-found", *selection).split())


@pytest.fixture(scope="session")
def pristine(cluster: Cluster) -> set[str]:
    """The cluster's objects without a namespace, from before any release."""
    return everything(Kube(cluster, NAMESPACE), namespaced=False)


@pytest.fixture(scope="session")
def traffic(cluster: Cluster) -> Iterator[Traffic]:
    """Every connection of the whole run, if the cluster is this machine's own."""
    if isinstance(cluster, Own):
        with recorded(Kube(cluster, NAMESPACE), cluster) as found:
            yield found
    else:
        yield Traffic()


@pytest.fixture(scope="session")
def kube(cluster: Cluster, image: Image, pristine: set[str], traffic: Traffic) -> Kube:
    """A release that takes programs."""
    kube = Kube(cluster, NAMESPACE)
    empty = pool(VALUES_POOL, replicas=0)
    with step("helm install"):
        install(kube, image, enginePools=[{"name": VALUES_POOL, "spec": empty["spec"]}])
        kube("wait", f"epool/{VALUES_POOL}", "--for=create", "--timeout=30s")
    assert pristine
    return kube


@pytest.fixture(scope="module")
def second(cluster: Cluster, image: Image, kube: Kube) -> Iterator[Kube]:
    """A second release, in another namespace, younger than the first."""
    other = Kube(cluster, OTHER)
    with step("second release"):
        install(other, image, **LEAN)
    yield other
    try:
        other.helm("uninstall", RELEASE, "--wait", "--timeout", "60s")
    except Refused as e:
        if "not found" not in str(e):
            raise
    other("delete", "namespace", OTHER, "--timeout=60s")


def pool(name: str, **spec: Any) -> Object:
    """A pool of fake engines."""
    shape = {
        "model": {"name": name},
        "engine": {"backend": "Fake", "kvMemory": "64Mi"},
        "replicas": 1,
        "drain": {"graceSeconds": 10},
    }
    metadata = {"name": name}
    return {"apiVersion": "tartlet.dev/v1alpha1", "kind": "EnginePool", "metadata": metadata, "spec": shape | spec}


@pytest.fixture(scope="session")
def fake_pool(kube: Kube) -> str:
    """A pool of fake engines."""
    with step("pool of fake engines"):
        kube.apply_file("docs/examples/enginepool-fake.yaml")
        kube.wait("epool/fake", "Ready")
    return "fake"


@pytest.fixture(scope="session")
def unstartable(kube: Kube) -> Object:
    """A pool whose pods no node can start. Made some modules before a test looks at it: the node gets time to fail."""
    volume = {"name": "none", "secret": {"secretName": "unstartable-none"}}
    mounts = [{"name": "none", "mountPath": "/none"}]
    made = pool("unstartable", podTemplate={"volumes": [volume], "volumeMounts": mounts})
    kube.apply(made)
    return made


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
        demo = {"apiVersion": "tartlet.dev/v1alpha1", "kind": "EnginePool", "metadata": {"name": "demo"}, "spec": spec}
        kube.apply(demo)
        kube.wait("epool/demo", "Ready", 120)
    return "demo"


def read_only(namespace: str, name: str, path: Path) -> Iterator[Object]:
    """Yields a volume and a claim on a directory of the node, which pods may mount where hostPath is forbidden."""
    volume = f"{namespace}-{name}"
    shape: Object = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    yield {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": volume, "labels": {MARK: "true"}},
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
