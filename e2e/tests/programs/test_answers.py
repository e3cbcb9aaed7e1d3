"""Runs of programs, whose answers are read from their status."""

from __future__ import annotations

from e2e.cluster.kube import Kube, Object, step
from e2e.tests.conftest import RELEASE

API = "tartlet.dev/v1alpha1"


def test_a_program_says_hello(kube: Kube, fake_pool: str) -> None:
    with step("inferlet"):
        kube.apply_file("docs/examples/inferlet-hello.yaml")
        kube.wait("ilet/hello", "Ready")
    with step("run"):
        kube.apply_file("docs/examples/inferletrun.yaml")
        kube.wait("irun/hello-1", "Succeeded")
    status = kube.get("irun/hello-1")["status"]
    assert status["phase"] == "Succeeded"
    assert status["output"] == "hello tartlet\n"
    assert status["result"] == "done"
    assert status["attempts"] == 1


def test_the_demo_model_adds(kube: Kube, demo_pool: str) -> None:
    with step("inferlet from a ConfigMap"):
        kube("create", "configmap", "programs", "--from-file=inferlets/std/text_completion.py")
        kube.apply_file("docs/examples/inferlet-completion.yaml")
        kube.wait("ilet/completion", "Ready")
        kube.wait("ilet/completion", "Runnable")
    with step("run"):
        arguments = ["--prompt", "374+588=", "--max-tokens", "64"]
        kube.apply(run("adds", "completion", args=arguments, deadlineSeconds=60))
        kube.wait("irun/adds", "Succeeded")
    status = kube.get("irun/adds")["status"]
    assert "962" in status["output"], status
    assert status["tokens"]["output"] > 0


def test_helms_own_test_passes(kube: Kube) -> None:
    with step("helm test"):
        assert "Phase:          Succeeded" in kube.helm("test", RELEASE, "--timeout", "90s")


def run(name: str, inferlet: str, **spec: object) -> Object:
    """Returns the manifest of a run."""
    return {
        "apiVersion": API,
        "kind": "InferletRun",
        "metadata": {"name": name},
        "spec": {"inferlet": inferlet, **spec},
    }
