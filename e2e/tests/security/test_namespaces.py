"""Two namespaces of one release, and certificates for other releases under the same issuer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cluster.artifacts.images import Image
from e2e.cluster.kube import Kube, Object, Refused, condition, step, until
from e2e.cluster.provider import Cluster
from e2e.tests.conftest import LEAN, NAMESPACE, RELEASE, install, make_namespace, pool
from e2e.tests.programs.test_answers import API, run
from e2e.tests.security.test_identities import ask, held, signed

HOME, ONE, TWO = f"{NAMESPACE}-home", f"{NAMESPACE}-one", f"{NAMESPACE}-two"
PAGE_SIZES = {ONE: 16, TWO: 8}
"""The page size of each namespace's engines tells in a run's output which of them computed it."""
SHARED_PAGE_SIZE = 4
WHICH = """
import inferlet

async def main():
    async with inferlet.Context() as ctx:
        ctx.fill("hello")
        async for _ in ctx.generate(max_tokens=2, eos=False):
            pass
    print("pages of", inferlet.get_kv_page_size())
"""


def engines(page_size: int) -> Object:
    """Returns the spec of a pool of fake engines that serve a model called `demo`."""
    return {"model": {"name": "demo"}, "engine": {"backend": "Fake", "kvMemory": "64Mi", "pageSize": page_size}}


def which(name: str, **spec: str) -> Object:
    """Returns an Inferlet that prints which engine computes for it."""
    body: Object = {"source": {"inline": WHICH}, **spec}
    return {"apiVersion": API, "kind": "Inferlet", "metadata": {"name": name}, "spec": body}


@pytest.fixture(scope="module")
def teams(cluster: Cluster, image: Image, kube: Kube) -> Iterator[tuple[Kube, Kube, Kube]]:
    """The release's namespace with a pool in its values, and two namespaces with pools of the same names."""
    own, one, two = (Kube(cluster, name) for name in (HOME, ONE, TWO))
    for each in (one, two):
        make_namespace(each)
    operator = {**LEAN["operator"], "namespaces": [HOME, ONE, TWO]}
    spec = pool("open")["spec"]
    open_pool = {"name": "open", "spec": spec | {"engine": spec["engine"] | {"pageSize": SHARED_PAGE_SIZE}}}
    with step("release for three namespaces"):
        install(own, image, operator=operator, enginePools=[open_pool])
    for each in (one, two):
        each.apply(pool("fake", **engines(PAGE_SIZES[each.namespace])))
        each.apply(which("any"), which("named", model="demo"), which("pooled", pool="fake"))
    for each in (one, two):
        each.wait("epool/fake", "Ready")
        for name in ("any", "named", "pooled"):
            each.wait(f"ilet/{name}", "Runnable")
    own("wait", "epool/open", "--for=create", "--timeout=30s")
    own.wait("epool/open", "Ready")
    yield own, one, two
    with step("release and namespaces gone"):
        for each in (one, two):
            each("delete", "epool", "--all", "--timeout=60s")
        until(lambda: not any(each.items("pods", "-l", "tartlet.dev/pool") for each in (one, two)), "engines have gone")
        own.helm("uninstall", RELEASE, "--wait", "--timeout", "60s")
        own("delete", "namespace", HOME, ONE, TWO, "--timeout=90s")


def outputs(kube: Kube, prefix: str) -> set[str]:
    """Returns the outputs of the runs with this prefix, once all have ended."""
    named = [f"irun/{r['metadata']['name']}" for r in kube.items("irun") if r["metadata"]["name"].startswith(prefix)]
    for each in named:
        kube.wait(each, "Succeeded", 90)
    return {kube.get(each)["status"]["output"] for each in named}


def test_two_namespaces_with_pools_of_one_name_run_on_their_own_engines(teams: tuple[Kube, Kube, Kube]) -> None:
    _, one, two = teams
    for each in (one, two):
        each.apply(*(run(f"own-{name}-{n}", name) for name in ("any", "named", "pooled") for n in range(4)))
    for each in (one, two):
        assert outputs(each, "own-") == {f"pages of {PAGE_SIZES[each.namespace]}\n"}


def test_runs_wait_for_their_namespaces_engine_while_it_restarts(teams: tuple[Kube, Kube, Kube]) -> None:
    _, one, _ = teams
    (before,) = (p["metadata"]["name"] for p in one.items("pods", "-l", "tartlet.dev/pool=fake"))
    one("delete", "pod", before, "--wait=false")
    one.apply(*(run(f"wait-{name}-{n}", name) for name in ("any", "named", "pooled") for n in range(3)))
    assert outputs(one, "wait-") == {f"pages of {PAGE_SIZES[ONE]}\n"}


def test_a_namespace_without_pools_uses_shared_pools_alone(teams: tuple[Kube, Kube, Kube]) -> None:
    """Its run for another namespace's model waits and names neither that namespace's pool nor its model."""
    own, one, _ = teams
    own.apply(which("named", model="demo"), which("shared", model="open"))
    own.wait("ilet/named", "Ready")
    own.apply(run("foreign", "named", deadlineSeconds=10), run("shared", "shared"))
    assert outputs(own, "shared") == {f"pages of {SHARED_PAGE_SIZE}\n"}
    one.apply(which("shared", model="open"))
    one.wait("ilet/shared", "Runnable")
    assert f"{HOME}/open" in str(one.get("ilet/shared")["status"]["conditions"])
    one.apply(run("lent", "shared"))
    assert outputs(one, "lent") == {f"pages of {SHARED_PAGE_SIZE}\n"}
    own.wait("irun/foreign", "Failed")
    status = own.get("irun/foreign")["status"]
    assert status["error"]["name"] == "DeadlineExceeded"
    assert ONE not in str(status)
    assert TWO not in str(status)


def test_a_shared_pool_of_no_engines_says_that_runs_of_other_namespaces_wait(teams: tuple[Kube, Kube, Kube]) -> None:
    own, one, _ = teams
    own("scale", "epool/open", "--replicas=0")
    until(lambda: condition(own.get("epool/open"), "Ready").get("reason") == "ScaledToZero", "its engine has gone")
    one.apply(which("waits", model="open"))
    one.wait("ilet/waits", "Ready")
    one.apply(run("waits", "waits"))
    until(lambda: "runs wait" in condition(own.get("epool/open"), "Ready")["message"], "the pool says so", 30)
    assert condition(own.get("epool/open"), "Ready")["status"] == "False"
    own("scale", "epool/open", "--replicas=1")
    assert outputs(one, "waits") == {f"pages of {SHARED_PAGE_SIZE}\n"}
    own.wait("epool/open", "Ready")


def test_the_operator_of_several_namespaces_is_refused_nothing(teams: tuple[Kube, Kube, Kube]) -> None:
    """kopf watches the same kinds in each namespace, also the Lease, which is in one alone."""
    log = teams[0]("logs", "deploy/tartlet-operator")
    assert log
    assert "orbidden" not in log


def test_a_worker_with_one_namespaces_key_brings_no_engine_of_another(teams: tuple[Kube, Kube, Kube]) -> None:
    _, _, two = teams
    (pod,) = (p["metadata"]["name"] for p in two.items("pods", "-l", "tartlet.dev/pool=fake"))
    rogue = ("exec", pod, "-c", "worker", "--", "timeout", "30", "tartlet", "serve", "--role", "worker")
    with pytest.raises(Refused, match="PermissionDenied"):
        two(*rogue, "--pool", f"{ONE}/fake", "--engine-id", "rogue", "--health-address", "")


def test_a_pool_cannot_say_that_it_is_another_namespaces(teams: tuple[Kube, Kube, Kube]) -> None:
    _, _, two = teams
    claims = {"env": [{"name": "TARTLET_WORKER_POOL", "value": f"{ONE}/fake"}]}
    with pytest.raises(Refused, match=r"spec\.podTemplate\.env"):
        two.apply(pool("rogue", podTemplate=claims))
    anothers = {"volumes": [{"name": "tls", "secret": {"secretName": "mine"}}]}
    with pytest.raises(Refused, match=r"spec\.podTemplate\.volumes"):
        two.apply(pool("rogue", podTemplate=anothers))


def test_certificates_for_others_by_the_releases_own_issuer_open_nothing(teams: tuple[Kube, Kube, Kube]) -> None:
    """As an issuer that two releases and many Services share would sign them."""
    own, _, _ = teams
    issuer = held(own, f"{RELEASE}-ca")
    strangers = {
        name: signed(name, issuer)
        for name in (
            f"operator.{RELEASE}.{NAMESPACE}.tartlet.internal",
            "operator",
            f"operator.{ONE}.svc",
            f"operator.{HOME}.svc.cluster.local",
            f"tenant.operator.{RELEASE}.{HOME}.tartlet.internal",
        )
    }
    methods = ("Control/State", "Control/Drain", "Catalogue/Put", "Engine/Connect", "Programs/List", "Programs/Kill")
    answers = list(ask(own, strangers, methods))
    assert {(a["code"], a["error"]) for a in answers} == {("PERMISSION_DENIED", "PermissionDenied")}
    theirs = held(own, f"{RELEASE}-operator-tls")
    assert {a["code"] for a in ask(own, {"operator": theirs}, ("Control/State", "Programs/List"))} == {"OK"}
