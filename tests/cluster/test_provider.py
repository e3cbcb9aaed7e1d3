"""Clusters that the harness doesn't run itself: kind's, and the one of KUBECONFIG. Stand-ins note the calls."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from e2e.cluster.artifacts import toolchain
from e2e.cluster.artifacts.requirements import Unfit
from e2e.cluster.layout import ROOT, Layout
from e2e.cluster.own.cluster import OwnCluster
from e2e.cluster.provider import KIND_NAME, KIND_NODE, Given, Kind, Own
from e2e.tests.conftest import clear
from tests.cluster.programs import program

IMAGE = "localhost/tartlet:e2e"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which kind, docker, kubectl and helm note their arguments; kind makes its cluster as the real one."""
    log, there = tmp_path / "asked", tmp_path / "there"
    note = f'echo "$(basename $0) $*" >> {log}\n'
    kind = f"""{note}case "$1 $2" in
    "get clusters") cat {there} 2>/dev/null ;;
    "create cluster") [ ! -e {tmp_path}/full ] || exit 1; echo {KIND_NAME} > {there}; touch "${{10}}" ;;
    "delete cluster") rm -f {there} ;;
    esac"""
    program(tmp_path / "bin" / "kind", kind)
    for name in ("docker", "kubectl", "helm"):
        program(tmp_path / "bin" / name, note)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return log


def commands(asked: Path) -> list[str]:
    """Returns the notes since the last call."""
    lines = asked.read_text().splitlines() if asked.exists() else []
    asked.unlink(missing_ok=True)
    return lines


def test_kinds_cluster_is_made_once_and_deleted(tmp_path: Path, asked: Path) -> None:
    cluster = Kind(Layout(tmp_path / "cache"))
    config = cluster.config
    assert not cluster.is_up()
    cluster.up()
    assert f"kind create cluster --name {KIND_NAME} --image {KIND_NODE} --wait 120s --kubeconfig {config}" in commands(
        asked
    )
    assert cluster.is_up()
    cluster.up()
    assert not [c for c in commands(asked) if "create" in c]
    assert cluster.kubectl() == ["kubectl", f"--kubeconfig={config}"]
    assert cluster.within() == ["env", f"KUBECONFIG={config}"]
    assert cluster.helm() == [str(tmp_path / "bin" / "helm"), f"--kubeconfig={config}"]
    cluster.down()
    assert commands(asked) == [f"kind delete cluster --name {KIND_NAME} --kubeconfig {config}"]
    assert not config.exists()
    assert not cluster.is_up()


def test_kinds_cluster_that_fails_to_start_is_deleted(tmp_path: Path, asked: Path) -> None:
    (tmp_path / "full").touch()
    with pytest.raises(subprocess.CalledProcessError):
        Kind(Layout(tmp_path / "cache")).up()
    assert commands(asked)[-1].startswith(f"kind delete cluster --name {KIND_NAME} ")


def test_kinds_image_is_dockers_and_loaded(tmp_path: Path, asked: Path) -> None:
    assert Kind(Layout(tmp_path)).image().name == IMAGE
    assert commands(asked) == [
        f"docker build --target base -t {IMAGE} {ROOT}",
        f"kind load docker-image {IMAGE} --name {KIND_NAME}",
    ]


def test_a_given_cluster_is_asked_and_left_alone(
    tmp_path: Path, asked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"KUBECONFIG": "/k", "TARTLET_E2E_IMAGE": "registry.example/tartlet:1"}
    cluster = Given(Layout(tmp_path), given)
    cluster.ensure()
    assert commands(asked) == ["kubectl get --raw /readyz"]  # KUBECONFIG may name several files, --kubeconfig may not
    cluster.up()
    assert cluster.is_up()
    assert cluster.image().name == "registry.example/tartlet:1"
    assert cluster.within() == []
    cluster.down()
    assert commands(asked) == []
    assert "which is left up" in capsys.readouterr().err


def test_what_a_given_cluster_lacks_is_said(tmp_path: Path, asked: Path) -> None:
    with pytest.raises(Unfit, match="TARTLET_E2E_IMAGE"):
        Given(Layout(tmp_path), {"KUBECONFIG": "/k"}).ensure()
    program(tmp_path / "bin" / "kubectl", "echo first >&2; echo 'connection refused' >&2; exit 1")
    unreachable = Given(Layout(tmp_path), {"KUBECONFIG": "/k", "TARTLET_E2E_IMAGE": "i"})
    with pytest.raises(Unfit, match=r"^the cluster that KUBECONFIG names doesn't answer: connection refused$"):
        unreachable.ensure()


def test_without_kubectl_neither_can_be_used(tmp_path: Path, asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unfit, match="kubectl is not"):
        Kind(Layout(tmp_path)).ensure()
    with pytest.raises(Unfit, match="kubectl is not installed"):
        Given(Layout(tmp_path), {"KUBECONFIG": "/k", "TARTLET_E2E_IMAGE": "i"}).ensure()


def definition(name: str, release_namespace: str = "") -> dict[str, object]:
    """Returns a CRD, with or without a Helm release as its owner."""
    notes = {"meta.helm.sh/release-namespace": release_namespace} if release_namespace else {}
    return {"metadata": {"name": f"{name}.tartlet.dev", "annotations": notes}, "spec": {"group": "tartlet.dev"}}


@pytest.mark.parametrize("owner", ["", "production", "e2example"])
def test_what_a_given_cluster_has_of_others_is_not_deleted(tmp_path: Path, asked: Path, owner: str) -> None:
    kinds = tmp_path / "kinds.json"
    program(tmp_path / "bin" / "kubectl", f'echo "$*" >> {asked}; case "$*" in *"get crds"*) cat {kinds} ;; esac')
    cluster = Given(Layout(tmp_path), {"KUBECONFIG": "/k", "TARTLET_E2E_IMAGE": "i"})
    kinds.write_text(json.dumps({"items": [definition("inferlets", "e2e"), definition("enginepools", owner)]}))
    with pytest.raises(pytest.exit.Exception, match=r"enginepools\.tartlet\.dev already"):
        clear(cluster)
    assert not [c for c in commands(asked) if "delete crds" in c or "delete namespace" in c]
    kinds.write_text(json.dumps({"items": [definition("inferlets", "e2e"), definition("enginepools", "e2e-other")]}))
    clear(cluster)
    assert commands(asked)[-1] == "-n e2e delete crds inferlets.tartlet.dev enginepools.tartlet.dev --timeout=60s"


def test_a_command_in_this_machines_cluster_finds_its_kubectl_and_helm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubernetes, helm = tmp_path / "k8s v1", tmp_path / "helm-v3"
    program(kubernetes, 'echo "k8s $*"\n')
    program(helm, 'echo "helm $*"\n')
    monkeypatch.setattr(toolchain, "kubernetes", lambda _: kubernetes)
    monkeypatch.setattr(toolchain, "helm", lambda _: helm)
    cluster = Own(Layout(tmp_path / "cache"), {})
    monkeypatch.setattr(cluster, "enter", lambda *_: [])
    for _ in range(2):
        command = "kubectl get pods -l 'a b'; helm version"
        done = subprocess.run([*cluster.within(), "sh", "-c", command], capture_output=True, text=True, check=True)
        assert done.stdout == "k8s kubectl get pods -l a b\nhelm version\n"


def test_a_cluster_of_another_checkout_is_joined_with_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = OwnCluster(Layout(tmp_path))
    monkeypatch.setattr(made, "is_up", lambda: True)
    made.layout.state.mkdir()
    (made.layout.state / "checkout").write_text(str(ROOT))
    made.up()
    assert capsys.readouterr().out == ""
    (made.layout.state / "checkout").write_text("/elsewhere/tartlet")
    made.up()
    assert "started by the checkout /elsewhere/tartlet" in capsys.readouterr().out
