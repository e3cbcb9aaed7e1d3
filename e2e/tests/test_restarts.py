"""Whatever restarts, what was applied is there again."""

from __future__ import annotations

import pytest

from e2e.cluster.kube import Kube, Refused, condition, step, until
from e2e.cluster.provider import Cluster, Own
from e2e.tests.test_answers import run


def hello(kube: Kube, name: str) -> None:
    """One more run of hello succeeds."""
    kube.apply(run(name, "hello", args=[name], deadlineSeconds=60, retries=3))
    kube.wait(f"irun/{name}", "Succeeded", 60)
    assert kube.get(f"irun/{name}")["status"]["output"] == f"hello {name}\n"


def test_control_restarted_has_its_catalogue_and_pools_again(kube: Kube, fake_pool: str) -> None:
    kube.apply_file("docs/examples/inferlet-hello.yaml")
    kube.wait("ilet/hello", "Ready")
    with step("control killed and back"):
        kube("delete", "pods", "-l", "app.kubernetes.io/component=control", "--grace-period=0", "--force")
        kube("rollout", "status", "deploy/tartlet-control", "--timeout=60s")
    with step("pool Ready, catalogue back"):
        until(lambda: condition(kube.get("epool/fake"), "Ready").get("status") == "True", "the pool is Ready", 60)
        hello(kube, "after-control")


def test_the_api_server_restarted_is_recovered_from(kube: Kube, cluster: Cluster, fake_pool: str) -> None:
    if not isinstance(cluster, Own):
        pytest.skip("only this machine's own cluster has an API server that may be killed")
    kube.apply_file("docs/examples/inferlet-hello.yaml")
    kube.wait("ilet/hello", "Ready")
    with step("API server killed and back"):
        cluster.kill("apiserver")
        until(lambda: _answers(kube), "the API server answers", 60)
    with step("run"):
        hello(kube, "after-api-server")
    until(lambda: condition(kube.get("epool/fake"), "Ready").get("status") == "True", "the pool is Ready", 30)


def _answers(kube: Kube) -> bool:
    try:
        return bool(kube("get", "--raw", "/readyz"))
    except Refused:
        return False
