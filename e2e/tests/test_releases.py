"""Releases come, change and go; two of them don't see each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cluster.images import Image
from e2e.cluster.kube import Kube, step, until
from e2e.cluster.layout import ROOT
from e2e.cluster.provider import Cluster
from e2e.tests.conftest import RELEASE, chart_values, install
from e2e.tests.test_answers import run

KINDS = "deploy,pods,svc,secrets,configmaps,sa,roles,rolebindings,netpol,pdb,epool,ilet,irun,lease,jobs"
OF_THE_NAMESPACE = {"configmap/kube-root-ca.crt", "serviceaccount/default"}

LEAN = {"operator": {"replicas": 1}}
"""A second release on a small machine."""


@pytest.fixture
def fresh(cluster: Cluster, image: Image, kube: Kube) -> Iterator[Kube]:
    """A namespace with a release of its own beside the tests' main one."""
    other = Kube(cluster, "e2e-other")
    with step("second release"):
        install(other, image, **LEAN)
    yield other
    other("delete", "namespace", other.namespace, "--ignore-not-found", "--timeout=60s")


def answer(kube: Kube, name: str) -> str:
    """The output of one more run of hello, which is applied anew."""
    kube.apply_file("docs/examples/inferlet-hello.yaml")
    kube.wait("ilet/hello", "Ready")
    kube.apply(run(name, "hello", args=[name], deadlineSeconds=60))
    kube.wait(f"irun/{name}", "Succeeded")
    output: str = kube.get(f"irun/{name}")["status"]["output"]
    return output


def test_upgrades_change_and_removal_leaves_nothing(cluster: Cluster, image: Image, kube: Kube, fresh: Kube) -> None:
    assert answer(fresh, "first") == "hello first\n"
    assert answer(kube, "mine") == "hello mine\n"
    assert "first" not in {r["metadata"]["name"] for r in kube.items("irun")}
    assert [r["metadata"]["name"] for r in fresh.items("irun")] == ["first"]

    with step("helm upgrade"):
        certificate = fresh.get("secret/tartlet-control-tls")["data"]
        values = chart_values(image, **LEAN, log={"level": "warning"})
        chart = str(ROOT / "charts" / "tartlet")
        fresh.helm("upgrade", RELEASE, chart, "--wait", "--timeout", "120s", values=values)
    level = fresh("get", "deploy/tartlet-control", "-o", "yaml")
    assert "value: warning" in level
    assert fresh.get("secret/tartlet-control-tls")["data"] == certificate
    assert answer(fresh, "second") == "hello second\n"

    with step("helm uninstall"):
        fresh("delete", "irun,ilet", "--all")
        fresh.helm("uninstall", RELEASE, "--wait", "--timeout", "60s")
        until(lambda: not left(fresh), f"nothing is left: {left(fresh)}", 30)
    assert answer(kube, "still") == "hello still\n"


def left(kube: Kube) -> set[str]:
    """What is in the namespace that wasn't there before the release."""
    names = {name.replace(".rbac.authorization.k8s.io", "") for name in kube("get", KINDS, "-o", "name").split()}
    return names - OF_THE_NAMESPACE
