"""Installs, upgrades, rollbacks and removals of releases; two releases don't affect each other in any order."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from e2e.cluster.artifacts.images import Image
from e2e.cluster.kube import Kube, Refused, step, until
from e2e.cluster.layout import ROOT
from e2e.tests.conftest import (
    CHART,
    LEAN,
    NAMESPACE,
    OTHER,
    RELEASE,
    VALUES_POOL,
    chart_values,
    everything,
    install,
    pool,
)
from e2e.tests.programs.test_answers import run

OF_EACH_NAMESPACE = {"configmap/kube-root-ca.crt", "serviceaccount/default"}
DEFINITIONS = {f"{plural}.tartlet.dev" for plural in ("enginepools", "inferlets", "inferletruns")}


def answer(kube: Kube, name: str) -> None:
    """Applies hello again, launches a run and waits for its success."""
    kube.apply_file("docs/examples/inferlet-hello.yaml")
    kube.wait("ilet/hello", "Ready")
    kube.apply(run(name, "hello", args=[name], deadlineSeconds=60))
    kube.wait(f"irun/{name}", "Succeeded")
    assert kube.get(f"irun/{name}")["status"]["output"] == f"hello {name}\n"


def uninstall(kube: Kube) -> None:
    """Uninstalls the release."""
    kube.helm("uninstall", RELEASE, "--wait", "--timeout", "90s")


def settled(listed: Callable[[], set[str]], expected: set[str]) -> None:
    """Waits until the list is as expected; pods and collected garbage take a moment to go."""
    last: set[str] = set()

    def same() -> bool:
        last.clear()
        last.update(listed())
        return last == expected

    try:
        until(same, "only what is to be left is left", 60)
    except TimeoutError:
        assert last == expected


def test_an_upgrade_changes_what_it_says_and_nothing_else(image: Image, kube: Kube, second: Kube) -> None:
    answer(second, "first")
    assert second.items("epool") == []
    second.wait("ilet/hello", "Runnable")  # it names no model, and needs no pool
    answer(kube, "mine")
    assert "first" not in {r["metadata"]["name"] for r in kube.items("irun")}
    assert [r["metadata"]["name"] for r in second.items("irun")] == ["first"]
    certificates = {n: second.get(f"secret/tartlet-{n}-tls")["data"] for n in ("control", "client", "worker")}
    before = {d["metadata"]["name"]: d["metadata"]["uid"] for d in second.items("deployments")}
    with step("helm upgrade"):
        values = chart_values(image, **LEAN, log={"level": "warning"})
        second.helm("upgrade", RELEASE, CHART, "--wait", "--timeout", "180s", values=values)
    assert "value: warning" in second("get", "deploy/tartlet-control", "-o", "yaml")
    assert {n: second.get(f"secret/tartlet-{n}-tls")["data"] for n in certificates} == certificates
    assert {d["metadata"]["name"]: d["metadata"]["uid"] for d in second.items("deployments")} == before
    assert [r["metadata"]["name"] for r in second.items("irun")] == ["first"]
    answer(second, "second")


def test_a_second_release_that_would_watch_the_same_namespace_is_refused(image: Image, kube: Kube) -> None:
    """Helm itself wouldn't refuse, because no two objects of the releases have the same name."""
    twice = Kube(kube.cluster, f"{NAMESPACE}-twice")

    def install_watching(*namespaces: str) -> None:
        values = chart_values(image, operator={"replicas": 1, "namespaces": list(namespaces)})
        twice.helm("install", "second", CHART, "--dry-run=server", values=values)

    with pytest.raises(Refused, match=f'already watches namespace "{NAMESPACE}"'):
        install_watching(twice.namespace, NAMESPACE)
    install_watching(twice.namespace)


@pytest.mark.beyond_gate
def test_a_rollback_to_the_first_revision_leaves_the_pools_there(image: Image, kube: Kube) -> None:
    values = chart_values(image, enginePools=[{"name": VALUES_POOL, "spec": pool(VALUES_POOL)["spec"]}])
    with step("helm upgrade, one engine"):
        kube.helm("upgrade", RELEASE, CHART, "--wait", "--timeout", "180s", values=values)
        until(lambda: kube.get(f"epool/{VALUES_POOL}")["spec"]["replicas"] == 1, "the operator takes the values over")
        kube.wait(f"epool/{VALUES_POOL}", "Ready")

    def roll_back() -> None:
        kube.helm("rollback", RELEASE, "1", "--wait", "--timeout", "180s")
        until(lambda: kube.get(f"epool/{VALUES_POOL}")["status"].get("replicas") == 0, "its engine has gone")

    with step("helm rollback, to none"):
        roll_back()
    answer(kube, "rolled-back")


def test_the_second_goes_first_and_leaves_what_it_says(kube: Kube, second: Kube) -> None:
    theirs = everything(kube, namespaced=False) - {o for o in everything(kube, namespaced=False) if OTHER in o}
    with step("helm uninstall, of the second"):
        uninstall(second)
        made = {"inferlet.tartlet.dev/hello", "inferletrun.tartlet.dev/first", "inferletrun.tartlet.dev/second"}
        settled(lambda: everything(second, namespaced=True), OF_EACH_NAMESPACE | made)
        settled(lambda: everything(kube, namespaced=False), theirs | {f"namespace/{OTHER}"})
    answer(kube, "still")
    second("delete", "irun,ilet", "--all", "--timeout=30s")  # no operator is needed to remove them
    settled(lambda: everything(second, namespaced=True), OF_EACH_NAMESPACE)


@pytest.mark.beyond_gate
def test_the_first_goes_first_and_comes_again(image: Image, pristine: set[str], kube: Kube, second: Kube) -> None:
    with step("second release, again"):
        install(second, image, **LEAN)
        answer(second, "again")
    assert [p["metadata"]["name"] for p in kube.items("epool") if p["metadata"]["name"] == VALUES_POOL]
    with step("helm uninstall, of the first"):
        uninstall(kube)
        settled(lambda: _of_helm(kube), set())
    assert VALUES_POOL not in {p["metadata"]["name"] for p in kube.items("epool")}
    new = {o for o in everything(kube, namespaced=False) - pristine if OTHER not in o}
    kept = {f"customresourcedefinition.apiextensions.k8s.io/{d}" for d in DEFINITIONS}
    kept |= {"apiservice.apiregistration.k8s.io/v1alpha1.tartlet.dev", f"namespace/{NAMESPACE}"}
    assert {o for o in new if not o.startswith("persistentvolume/")} == kept
    assert re.search(r"leaves the CRDs", (ROOT / "charts/tartlet/templates/NOTES.txt").read_text())
    answer(second, "alone")

    with step("first release, after the second"):
        install(kube, image)
    answer(kube, "back")
    answer(second, "beside")
    with step("helm uninstall, of the second"):
        uninstall(second)
    answer(kube, "last")


def _of_helm(kube: Kube) -> set[str]:
    """Returns Helm's objects in a namespace that the tests share."""
    return everything(kube, "-l", "app.kubernetes.io/managed-by=Helm", namespaced=True)
