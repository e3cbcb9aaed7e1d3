"""Installs the chart with one command and no values, on CPUs; an upgrade brings the gateway with its page."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.cluster.artifacts.images import Image
from e2e.cluster.kube import Kube, Object, step
from e2e.cluster.layout import ROOT
from e2e.cluster.provider import Cluster, Own
from e2e.tests.conftest import CHART, RELEASE, make_namespace, read_only
from e2e.tests.support import visitor
from e2e.tests.support.visitor import Visit
from tests.lacking import lacking

NAMESPACE = "e2e-plain"
IMAGES = ("tartlet:0.1.0", "tartlet-worker:0.1.0")
"""The images that the chart's defaults name."""
ON_THE_NODE = [f"docker.io/library/{name}" for name in IMAGES]
"""The full names of these images on a node."""


@pytest.fixture(scope="module")
def plain(cluster: Cluster, image: Image, kube: Kube) -> Iterator[Kube]:
    """A namespace and nodes with the default images: without a registry, the local image gets the default names."""
    if not isinstance(cluster, Own):
        pytest.skip("only on this machine's own cluster can an image be given the default names")
    cluster.name_image(image.name, *ON_THE_NODE)
    made = Kube(cluster, NAMESPACE)
    make_namespace(made)
    yield made
    made.helm("uninstall", RELEASE, "--wait", "--timeout", "90s")
    made("delete", "namespace", NAMESPACE, "--timeout=90s")
    for volume in ("models", "packages"):
        made("delete", f"persistentvolume/{NAMESPACE}-{volume}", "--ignore-not-found", "--timeout=60s")
    cluster.forget_images(*ON_THE_NODE)


def lend_torch(kube: Kube) -> None:
    """Mounts torch and the model into the default pool, because the local image has neither."""
    import torch

    packages = Path(torch.__file__).resolve().parents[1]
    for name, path in {"models": ROOT / "models", "packages": packages}.items():
        kube.apply(*read_only(NAMESPACE, name, path))
    spec: Object = {
        "model": {"init": None, "volumeClaim": {"claimName": "models"}},
        "resources": {"requests": {"cpu": "100m"}},  # the replaced pod still holds half of a small node
        "podTemplate": {
            "env": [{"name": "PYTHONPATH", "value": "/packages"}],
            "volumes": [{"name": "packages", "persistentVolumeClaim": {"claimName": "packages", "readOnly": True}}],
            "volumeMounts": [{"name": "packages", "mountPath": "/packages", "readOnly": True}],
        },
    }
    kube("patch", "epool/demo", "--type=merge", "-p", json.dumps({"spec": spec}))


def test_an_install_without_values_serves_the_demo_model(plain: Kube) -> None:
    with step("helm install, without values"):
        plain.helm("install", RELEASE, CHART, "--wait", "--timeout", "180s")
    replicas = {d["metadata"]["name"]: d["status"].get("readyReplicas") for d in plain.items("deployments")}
    assert {n: replicas.get(n) for n in ("tartlet-control", "tartlet-runtime")} == dict.fromkeys(
        ("tartlet-control", "tartlet-runtime"), 1
    )
    assert replicas["tartlet-operator"] == 2
    plain("wait", "epool/demo", "--for=create", "--timeout=30s")
    pool = plain.get("epool/demo")["spec"]
    assert (pool["engine"]["device"], pool["replicas"], pool["model"]["name"]) == ("cpu", 1, "demo")
    assert pool["model"]["init"]["image"] == IMAGES[1]
    lend_torch(plain)
    with step("the default pool's engine"):
        plain.wait("epool/demo", "Ready", 180)
    plain("create", "configmap", "programs", "--from-file=inferlets/std/text_completion.py")
    plain.apply_file("docs/examples/inferlet-completion.yaml")
    plain.apply_file("docs/examples/inferletrun-completion.yaml")  # applied at once: the run waits for its Inferlet
    plain.wait("irun/completion-1", "Succeeded")
    assert plain.get("irun/completion-1")["status"]["output"].endswith("so 962\n")


@contextmanager
def forwarded(kube: Kube, service: str, port: int) -> Iterator[str]:
    """Yields the address, in the cluster's network, of a port-forward to a Service."""
    command = [*kube.cluster.kubectl(), "-n", kube.namespace, "port-forward", f"service/{service}", f":{port}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    with process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()  # Forwarding from 127.0.0.1:34567 -> 8200
            assert line.startswith("Forwarding from 127.0.0.1:"), line
            yield line.split()[2]
        finally:
            process.terminate()


def test_the_gateway_answers_the_openai_client_and_its_page_opens(plain: Kube, tmp_path: Path) -> None:
    browser = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if browser is None:
        lacking("no Chromium: apt-get install chromium-headless-shell")
    file = tmp_path / "keys.json"
    keys = (str(Path(sys.executable).with_name("tartlet")), "keys", "create", "--tenant", plain.namespace)
    key = subprocess.run([*keys, "--file", str(file)], capture_output=True, text=True, check=True).stdout.strip()
    plain("create", "secret", "generic", "api-keys", f"--from-file=keys.json={file}")
    plain("create", "secret", "generic", "test-key", f"--from-literal=key={key}")
    wanted = "gateway.enabled=true,gateway.replicas=1,gateway.keys.secretName=api-keys,test.chat.secretName=test-key"
    with step("helm upgrade, with a gateway"):
        plain.helm("upgrade", RELEASE, CHART, "--reuse-values", "--set", wanted, "--wait", "--timeout", "180s")
    with step("helm test, which sends a chat"):
        assert plain.helm("test", RELEASE, "--timeout", "120s").count("Succeeded") == 2
    with step("port-forward, the client and the page"), forwarded(plain, f"{RELEASE}-gateway", 8200) as address:
        visit = [*plain.cluster.within(), sys.executable, str(Path(visitor.__file__)), f"http://{address}", browser]
        done = subprocess.run(visit, input=key, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    seen: Visit = json.loads(done.stdout)
    assert "demo" in seen["models"]
    assert seen["answer"].endswith("962")
    assert seen == {**seen, "streamed": seen["answer"], "wrong": []}
    assert "ready" in seen["engine"]
