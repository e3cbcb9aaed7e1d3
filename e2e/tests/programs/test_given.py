"""An operator with configured namespaces and hosts for sources; Wasm inferlets."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.artifacts.images import Image
from e2e.cluster.kube import Kube, Object, condition, step, until
from e2e.cluster.layout import ROOT
from e2e.cluster.provider import Cluster
from e2e.tests.conftest import LEAN, RELEASE, install, make_namespace, pool
from e2e.tests.programs.test_answers import run
from e2e.tests.security.test_safety import NEEDS, allowed
from e2e.tests.support.person import Person
from e2e.tests.support.story import HELLO, inferlet

OWN, ONE, TWO = "e2e-given", "e2e-given-one", "e2e-given-two"
HOST = f"sources.{ONE}:8000"
EXAMPLES = ROOT / "inferlets" / "sdk" / "c" / "examples"
COMPLETION, SENDS = ((EXAMPLES / f"{name}.wasm").read_bytes() for name in ("text_completion", "send_and_exit"))
FILES = {"hello.py": HELLO.encode(), "completion.wasm": COMPLETION}
SPEAKS = """
import asyncio

async def main():
    print("begun", flush=True)
    await asyncio.sleep(4)
    print("over")
"""
KINDS = (("epool", "fake"), ("ilet", "named"), ("irun", "named"))
LEADS = ("create leases", "get leases tartlet-operator", "update leases tartlet-operator")
POOLS = ("get configmaps tartlet-pools", "patch configmaps tartlet-pools")
"""Rights in the release's own namespace, whether the operator watches it or not."""
WATCHED = [need for need in NEEDS if need not in (*LEADS, "create enginepools")]
"""Rights in a namespace that the operator watches."""


def digest(data: bytes) -> str:
    """Returns the digest in the form that an Inferlet takes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def fetched(name: str, sha256: str = "", host: str = HOST) -> Object:
    """Returns the source that names a file of the web server."""
    return {"url": {"url": f"http://{host}/{name}", "digest": sha256 or digest(FILES[name])}}


def wasm(made: Object) -> Object:
    """Returns the same Inferlet in another language."""
    return {**made, "spec": {**made["spec"], "language": "Wasm"}}


@pytest.fixture(scope="module")
def given(cluster: Cluster, image: Image, kube: Kube) -> Iterator[tuple[Kube, Kube, Kube]]:
    """The release's namespace, which its operator doesn't watch, and the two namespaces that the operator watches."""
    own, one, two = (Kube(cluster, name) for name in (OWN, ONE, TWO))
    for each in (one, two):
        make_namespace(each)
    one.apply(*web_server(image))
    to_sources: Object = {
        "to": [
            {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": ONE}},
                "podSelector": {"matchLabels": {"app": "sources"}},
            }
        ],
        "ports": [{"protocol": "TCP", "port": 8000}],
    }
    operator = {
        **LEAN["operator"],
        "namespaces": [ONE, TWO],
        "settings": {"source_hosts": HOST, "source_private_hosts": HOST.partition(":")[0]},
    }
    with step("release for two namespaces"):
        install(own, image, operator=operator, networkPolicy={"operator": {"extraEgress": [to_sources]}})
    yield own, one, two
    with step("pools gone"):  # while control runs, it tells engines that no program waits, and they drain at once
        for each in (one, two):
            each("delete", "epool", "--all", "--timeout=60s")
        until(lambda: not any(each.items("pods", "-l", "tartlet.dev/pool") for each in (one, two)), "engines have gone")
    with step("release gone"):
        own.helm("uninstall", RELEASE, "--wait", "--timeout", "60s")
    with step("namespaces gone"):
        own("delete", "namespace", OWN, ONE, TWO, "--timeout=90s")


def web_server(image: Image) -> Iterator[Object]:
    """Serves the files over HTTP."""
    at = {"name": "sources"}
    yield {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": at,
        "binaryData": {name: base64.b64encode(data).decode() for name, data in FILES.items()},
    }
    ports = [{"port": 8000}]
    yield {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": at,
        "spec": {"selector": {"app": "sources"}, "ports": ports},
    }
    none: Object = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container: Object = {
        "name": "web",
        "image": image.name,
        "command": ["python", "-m", "http.server", "8000", "--directory", "/srv"],
        "securityContext": none | {"readOnlyRootFilesystem": True},
        "readinessProbe": {"tcpSocket": {"port": 8000}, "periodSeconds": 1},
        "volumeMounts": [{"name": "files", "mountPath": "/srv", "readOnly": True}],
    }
    yield {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**at, "labels": {"app": "sources"}},
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,  # the first process of a container ignores SIGTERM by default
            "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            "volumes": [{"name": "files", "configMap": {"name": "sources"}}],
        },
    }


def answer(kube: Kube, name: str, inferlet_name: str, **spec: object) -> Object:
    """Launches another run, and returns its status after success."""
    kube.apply(run(name, inferlet_name, deadlineSeconds=60, **spec))
    kube.wait(f"irun/{name}", "Succeeded")
    status: Object = kube.get(f"irun/{name}")["status"]
    return status


def refused(kube: Kube, name: str, reason: str) -> str:
    """Returns the message of an Inferlet's condition that says why it isn't Ready."""
    until(lambda: _ready(kube, name).get("reason") == reason, f"{name} is refused: {reason}", 40)
    assert _ready(kube, name)["status"] == "False"
    return str(_ready(kube, name)["message"])


def _ready(kube: Kube, name: str) -> Object:
    return condition(kube.get(f"ilet/{name}"), "Ready")


def test_namespaces_that_it_was_given_are_seen_to_and_no_other(given: tuple[Kube, Kube, Kube]) -> None:
    own, one, two = given
    for each in given:
        text = f"async def main():\n    return '{each.namespace}'\n"
        each.apply(pool("fake"), inferlet("named", "fake", {"inline": text}), run("named", "named"))
    with step("pools, inferlets and runs in two namespaces"):
        for each in (one, two):
            each.wait("epool/fake", "Ready")
            each.wait("irun/named", "Succeeded")
            each.wait("ilet/named", "Runnable")
            assert each.get("irun/named")["status"]["result"] == each.namespace
    assert [own.get(f"{kind}/{name}").get("status") for kind, name in KINDS] == [None] * 3
    assert not own.items("deployments", "-l", "tartlet.dev/pool")
    groups = ["system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{OWN}"]
    account = {"user": f"system:serviceaccount:{OWN}:{RELEASE}-operator", "groups": groups}
    for each, may in ((one, WATCHED), (two, WATCHED), (own, [n for n in NEEDS if n in (*LEADS, *POOLS)])):
        assert allowed(own, account, NEEDS, each.namespace) == list(may)
    own("delete", *(f"{kind}/{name}" for kind, name in KINDS))


def test_a_source_from_a_url_is_what_its_digest_says(given: tuple[Kube, Kube, Kube]) -> None:
    _, one, two = given
    wrong = "sha256:" + "0" * 64
    one("wait", "pod/sources", "--for=condition=Ready", "--timeout=30s")
    one.apply(
        inferlet("fetched", "fake", fetched("hello.py")),
        inferlet("forged", "fake", fetched("hello.py", wrong)),
        inferlet("lost", "fake", fetched("none.py", "sha256:" + "1" * 64)),
        inferlet("foreign", "fake", fetched("hello.py", "sha256:" + "2" * 64, "sources.elsewhere:8000")),
    )
    two.apply(inferlet("fetched", "fake", fetched("hello.py")))
    with step("fetched, and run"):
        for each in (one, two):
            each.wait("ilet/fetched", "Ready")
            assert each.get("ilet/fetched")["status"]["digest"] == digest(HELLO.encode())
            assert answer(each, "fetched", "fetched", args=["you"])["output"] == "hello you\n"
    message = refused(one, "forged", "DigestMismatch")
    assert "spec.source.url.digest" in message
    assert digest(HELLO.encode()) in message
    message = refused(one, "lost", "FetchFailed")
    assert "spec.source.url.url" in message
    assert "404" in message
    message = refused(one, "foreign", "HostNotAllowed")
    assert "spec.source.url.url" in message
    assert "source_hosts" in message
    one.apply(run("forged", "forged"))
    with step("digest corrected, and its run succeeds"):
        one.apply(inferlet("forged", "fake", fetched("hello.py")))
        one.wait("ilet/forged", "Ready")
        one.wait("irun/forged", "Succeeded")


def test_wasm_inferlets_run_from_a_config_map_and_a_url(given: tuple[Kube, Kube, Kube]) -> None:
    _, one, _ = given
    modules = {"sends": SENDS, "broken": SENDS[:-20]}
    data = {name: base64.b64encode(module).decode() for name, module in modules.items()}
    one.apply(
        pool("fake"),
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "modules"}, "binaryData": data},
        *(wasm(inferlet(name, "fake", {"configMap": {"name": "modules", "key": name}})) for name in modules),
        wasm(inferlet("completes", "fake", fetched("completion.wasm"))),
    )
    with step("two modules, run"):
        for name, module in (("sends", SENDS), ("completes", COMPLETION)):
            one.wait(f"ilet/{name}", "Ready")
            assert one.get(f"ilet/{name}")["status"]["digest"] == digest(module)
        assert answer(one, "sends", "sends")["output"] == "ok"
        status = answer(one, "completes", "completes", args=["--prompt", "abc", "--max-tokens", "5"])
    assert status["tokens"]["output"] >= 5
    assert status["tokens"]["input"] > 0
    assert status["output"]
    assert refused(one, "broken", "CorruptModule")
    with step("the ConfigMap has another program"):
        one("patch", "configmap/modules", "--type=merge", "-p", json.dumps({"binaryData": {"broken": data["sends"]}}))
        one.wait("ilet/broken", "Ready")
        assert answer(one, "broken", "broken")["output"] == "ok"


def test_logs_come_from_the_status_where_no_runtime_is(given: tuple[Kube, Kube, Kube], tmp_path: Path) -> None:
    _, one, _ = given
    one.apply(inferlet("speaks", "fake", {"inline": SPEAKS}), run("speaks", "speaks"))
    one.wait("irun/speaks", "Running")
    somebody = Person(one, "administrator", tmp_path)
    somebody.configure()
    with step("kubectl tartlet logs -f"):
        code, out, err = somebody.kubectl("tartlet", "logs", "-f", "speaks")
    assert (code, out) == (0, "begun\nover\n"), err
    assert f"no release of Tartlet in namespace {ONE}" in err
