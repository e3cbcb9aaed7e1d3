"""Two releases whose certificates one issuer signed share nothing: neither identities, nor engines, nor programs."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest

from e2e.cluster.artifacts.images import Image
from e2e.cluster.kube import Kube, Object, Refused, step
from e2e.cluster.provider import Cluster
from e2e.tests.conftest import LEAN, NAMESPACE, RELEASE, install, make_namespace, pool
from e2e.tests.programs.test_answers import run
from e2e.tests.security.test_identities import ISSUED, ask, held, same_named_authority, signed
from e2e.tests.security.test_namespaces import engines, outputs, which
from e2e.tests.support.calls import Identity

EAST, WEST = f"{NAMESPACE}-east", f"{NAMESPACE}-west"
PAGE_SIZES = {EAST: 16, WEST: 8}
"""The page size of each release's engines tells in a run's output which of them computed it."""

METHODS = ("Control/State", "Control/Connect", "Catalogue/Put", "Engine/Connect", "Programs/List", "Programs/Launch")


def secret(role: str, namespace: str, issuer: Identity) -> Object:
    """Returns the Secret of a role, with the names that the chart's README asks for."""
    domain = f"{RELEASE}.{namespace}.tartlet.internal"
    more = [f"tenant.{namespace}.{domain}"] if role in ("client", "worker") else []
    service = f"{RELEASE}-{role}.{namespace}.svc"
    more += [service, "localhost"] if role in ("control", "runtime") else []
    identity = signed(f"{role}.{domain}", issuer, 30, also=more)
    texts = {"tls.crt": identity["certificate"], "tls.key": identity["key"], "ca.crt": identity["authority"]}
    data = {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}
    metadata = {"name": f"{RELEASE}-{role}-tls"}
    return {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": metadata, "data": data}


@pytest.fixture(scope="module")
def releases(cluster: Cluster, image: Image, kube: Kube) -> Iterator[tuple[Kube, Kube]]:
    """Two releases under one issuer, each with a pool of one name that serves a model of one name."""
    issuer = same_named_authority(held(kube, f"{RELEASE}-ca"))
    both = Kube(cluster, EAST), Kube(cluster, WEST)
    with step("two releases under one issuer"):
        for each in both:
            make_namespace(each)
            each(
                "create",
                "-f",
                "-",
                text=json.dumps(
                    {
                        "apiVersion": "v1",
                        "kind": "List",
                        "items": [secret(role, each.namespace, issuer) for role in ISSUED],
                    }
                ),
            )
            install(each, image, **LEAN, certificates={"provider": "existing"})
            each.apply(pool("fake", **engines(PAGE_SIZES[each.namespace])))
            each.apply(which("any"), which("named", model="demo"), which("pooled", pool="fake"))
        for each in both:
            each.wait("epool/fake", "Ready")
            for name in ("any", "named", "pooled"):
                each.wait(f"ilet/{name}", "Runnable")
    yield both
    with step("both gone"):
        for each in both:
            each("delete", "epool", "--all", "--timeout=60s")
            each.helm("uninstall", RELEASE, "--wait", "--timeout", "60s")
        kube("delete", "namespace", EAST, WEST, "--timeout=90s")


def test_neither_release_takes_the_roles_of_the_other(releases: tuple[Kube, Kube]) -> None:
    """The issuer is trusted on both sides, so the connections are made, and every call is refused."""
    for here, there in (releases, releases[::-1]):
        strangers = {f"{role} of {there.namespace}": held(there, f"{RELEASE}-{role}-tls") for role in ISSUED}
        answers = list(ask(here, strangers, METHODS))
        assert {(a["code"], a["error"]) for a in answers} == {("PERMISSION_DENIED", "PermissionDenied")}
        own = {"operator": held(here, f"{RELEASE}-operator-tls")}
        assert {a["code"] for a in ask(here, own, ("Control/State", "Programs/List"))} == {"OK"}


def test_a_worker_of_one_release_brings_the_other_no_engine(releases: tuple[Kube, Kube]) -> None:
    """It doesn't even say what it is: the certificate of that control names another release."""
    east, west = releases
    (pod,) = (p["metadata"]["name"] for p in west.items("pods", "-l", "tartlet.dev/pool=fake"))
    rogue = ("exec", pod, "-c", "worker", "--", "timeout", "8", "tartlet", "serve", "--role", "worker")
    where = ("--control", f"{RELEASE}-control.{EAST}.svc:7443", "--pool", f"{EAST}/fake", "--engine-id", "rogue")
    with pytest.raises(Refused, match=r"no connection to control .*Verification Check failed"):
        west(*rogue, *where, "--health-address", "")
    assert "rogue" not in str(east.get("epool/fake")["status"])


def test_runs_use_their_own_releases_engines_while_those_restart(releases: tuple[Kube, Kube]) -> None:
    for each in releases:
        each.apply(*(run(f"own-{name}-{n}", name) for name in ("any", "named", "pooled") for n in range(2)))
    for each in releases:
        assert outputs(each, "own-") == {f"pages of {PAGE_SIZES[each.namespace]}\n"}
    east, _ = releases
    east("delete", "pod", "-l", "tartlet.dev/pool=fake", "--wait=false")
    east.apply(*(run(f"wait-{name}", name) for name in ("any", "named", "pooled")))
    assert outputs(east, "wait-") == {f"pages of {PAGE_SIZES[EAST]}\n"}
