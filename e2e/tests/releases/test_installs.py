"""Installs that can't serve say why, and uninstalls leave nothing that nobody can delete."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.artifacts.images import Image
from e2e.cluster.kube import Kube, Object, condition, step, until
from e2e.cluster.provider import Cluster
from e2e.tests.conftest import CHART, LEAN, RELEASE, chart_values, install, make_namespace, pool
from e2e.tests.programs.test_answers import API, run
from e2e.tests.support.person import Person
from e2e.tests.support.story import SLOW, inferlet

NAMESPACE = "e2e-installs"
NOWHERE = "registry.invalid/tartlet"
SOON_S = 20.0
"""How long an install or an uninstall may take where no image can be pulled, and until the cause is told."""
DRAIN = "tartlet.dev/drain"


@pytest.fixture
def fresh(cluster: Cluster, kube: Kube) -> Iterator[Kube]:
    """A namespace without a release."""
    made = Kube(cluster, NAMESPACE)
    make_namespace(made)
    yield made
    for release in made.helm("list", "--all", "-q").split():
        made.helm("uninstall", release, "--wait", "--timeout", "60s")
    made("delete", "namespace", NAMESPACE, "--timeout=90s")


def test_an_install_whose_images_cannot_be_pulled_ends_and_says_so(fresh: Kube, tmp_path: Path) -> None:
    image = {"repository": NOWHERE, "tag": "v1"}
    start = time.monotonic()
    with step("helm install, without images"):
        fresh.helm("install", RELEASE, CHART, values={"image": image, "operator": {"replicas": 1}})
    with step("the cause is told"):
        until(lambda: "ErrImagePull" in _status(fresh, tmp_path), "the status names the cause", SOON_S)
    assert time.monotonic() - start < SOON_S
    with step("helm uninstall, without images"):
        start = time.monotonic()
        fresh.helm("uninstall", RELEASE)
    assert time.monotonic() - start < SOON_S
    assert not fresh.items("epool")


def _status(kube: Kube, directory: Path) -> str:
    """Returns what `kubectl tartlet status` shows; a failed pull must come with its image and the missing pool."""
    administrator = Person(kube, "administrator", directory)
    administrator.configure()
    code, told, err = administrator.kubectl("tartlet", "status")
    assert code == 0, err
    if "ErrImagePull" in told:
        assert f'"{NOWHERE}:v1"' in told
        assert "pool demo of the values: the operator hasn't made it yet" in told
    return told


def test_an_uninstall_drains_the_pools_of_the_values_and_frees_all_others(
    image: Image, fresh: Kube, tmp_path: Path
) -> None:
    values = [{"name": "given", "spec": pool("given")["spec"]}, {"name": "bad", "spec": {"model": {"name": "No Name"}}}]
    install(fresh, image, **LEAN, enginePools=values)
    until(lambda: "given" in _pools(fresh), "the operator makes the pool of the values", 20)
    until(lambda: "pool bad of the values: refused: " in _status(fresh, tmp_path), "the refusal is told", 20)
    fresh.apply(pool("mine"))
    for name in ("given", "mine"):
        fresh.apply(inferlet(f"slow-{name}", name, {"inline": SLOW}))
        fresh.apply(run(name, f"slow-{name}", args=["90"], deadlineSeconds=120, lossRetries=0))
    until(lambda: all(DRAIN in found for found in _pools(fresh).values()), "the pools' programs are known", 40)
    start = time.monotonic()
    with step("helm uninstall, with programs"):
        fresh.helm("uninstall", RELEASE, "--timeout", "60s")
    assert time.monotonic() - start < 40, "the grace of its drain is 10 s"
    assert _pools(fresh) == {"mine": []}
    assert condition(fresh.get("epool/mine"), "Available")["status"] == "True"
    fresh("delete", "irun,ilet,epool", "--all", "--timeout=30s")  # without an operator
    assert json.loads(fresh("get", "epool", "-o", "json"))["items"] == []


def _pools(kube: Kube) -> dict[str, list[str]]:
    """Returns the finalizers of each pool."""
    return {p["metadata"]["name"]: p["metadata"].get("finalizers", []) for p in kube.items("epool")}


def test_a_run_that_is_applied_with_its_pool_waits_for_the_pools_engine(image: Image, fresh: Kube) -> None:
    """The program names neither model nor pool, and uses an engine: launched too early it would fail."""
    install(fresh, image, **LEAN)
    early: Object = {"apiVersion": API, "kind": "Inferlet", "metadata": {"name": "early"}}
    fresh.apply(early | {"spec": {"source": {"inline": SLOW}}})
    fresh.wait("ilet/early", "Runnable")
    fresh.apply(pool("together"), run("together", "early", args=["1"], deadlineSeconds=60, lossRetries=0))
    fresh.wait("irun/together", "Succeeded")
    assert fresh.get("irun/together")["status"]["attempts"] == 1
    fresh("delete", "irun,ilet,epool", "--all", "--timeout=60s")


def test_a_pool_of_the_values_follows_upgrades_and_keeps_its_scale(image: Image, fresh: Kube) -> None:
    def upgrade(**changed: object) -> None:
        given = [{"name": "given", "spec": {**pool("given", replicas=0)["spec"], **changed}}]
        fresh.helm("upgrade", RELEASE, CHART, values=chart_values(image, **LEAN, enginePools=given))

    install(fresh, image, **LEAN, enginePools=[{"name": "given", "spec": pool("given", replicas=0)["spec"]}])
    fresh("wait", "epool/given", "--for=create", "--timeout=20s")
    fresh("scale", "epool/given", "--replicas=1")
    upgrade(startDeadlineSeconds=77)
    until(lambda: fresh.get("epool/given")["spec"].get("startDeadlineSeconds") == 77, "the change arrives", 20)
    assert fresh.get("epool/given")["spec"]["replicas"] == 1
    fresh.helm("upgrade", RELEASE, CHART, values=chart_values(image, **LEAN))
    until(lambda: not _pools(fresh), "the pool goes with its values", 40)
    fresh.helm("rollback", RELEASE, "1")
    until(lambda: "given" in _pools(fresh), "the rollback brings the pool back", 20)
