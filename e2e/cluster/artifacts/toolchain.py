"""Builds Kubernetes, CoreDNS and Helm from their Go modules, once for each version."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

from e2e.cluster.artifacts.requirements import go
from e2e.cluster.layout import COMPONENTS, COREDNS, HELM, Layout, files_digest, kubernetes_version

_BUILD = ("build", "-trimpath", "-buildvcs=false")  # git may not trust the owner of the repository


def is_built(layout: Layout) -> bool:
    """Whether all tools are built."""
    tools = (kubernetes_path(layout), pause_path(layout), coredns_path(layout), helm_path(layout))
    return all(tool.exists() for tool in tools)


def _installed(target: Path, command: str, stamps: str) -> Path:
    """Installs a Go command by its module path; `stamps` are linker flags that set the command's variables."""
    if target.exists():
        return target
    with _Building(target) as part:
        environment = {**os.environ, "CGO_ENABLED": "0", "GOBIN": str(part), "GOFLAGS": "-mod=mod -buildvcs=false"}
        _run([go(), "install", f"-ldflags=-s -w {stamps}", command], environment)
        next(part.iterdir()).replace(target)
    return target


class _Building:
    """A directory for an unfinished build; prints how long the build took."""

    def __init__(self, target: Path) -> None:
        self.target, self.part, self.start = target, target.with_name(target.name + ".part"), 0.0

    def __enter__(self) -> Path:
        shutil.rmtree(self.part, ignore_errors=True)
        self.part.mkdir(parents=True)
        self.start = time.monotonic()
        print(f"building {self.target.name}", flush=True)
        return self.part

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self.part, ignore_errors=True)
        if error[0] is None:
            print(f"built {self.target.name} in {time.monotonic() - self.start:.0f} s", flush=True)


def _run(command: list[str], environment: dict[str, str], cwd: Path | None = None) -> None:
    # niced, so that a build doesn't starve other processes
    subprocess.run(["nice", "-n", "10", *command], check=True, env=environment, cwd=cwd)


def kubernetes_path(layout: Layout) -> Path:
    """The path of the binary that `kubernetes` builds."""
    sources = [COMPONENTS / name for name in ("main.go", "go.mod", "go.sum")]
    return layout.tool("k8s", f"{kubernetes_version()}-{files_digest(sources, COMPONENTS)}")


def kubernetes(layout: Layout) -> Path:
    """Builds all of Kubernetes' components into one binary: 12 minutes on two cores without Go's cache."""
    target, version = kubernetes_path(layout), kubernetes_version()
    major, minor = _major_minor()
    stamp = "k8s.io/component-base/version."  # else nodes report v0.0.0
    stamps = f"-X {stamp}gitVersion={version} -X {stamp}gitMajor={major} -X {stamp}gitMinor={minor}"
    return _built(target, COMPONENTS, dict(os.environ), stamps)


def _major_minor() -> tuple[str, str]:
    major, minor = kubernetes_version().removeprefix("v").split(".")[:2]
    return major, minor


def pause_path(layout: Layout) -> Path:
    """The path of the binary that `pause` builds."""
    return layout.tool("pause", files_digest([COMPONENTS / "pause" / "main.go"], COMPONENTS))


def pause(layout: Layout) -> Path:
    """Builds the program that holds a pod's namespaces open."""
    return _static(pause_path(layout), COMPONENTS / "pause")


def coredns_path(layout: Layout) -> Path:
    """The path of the binary that `coredns` builds."""
    sources = [COMPONENTS / "coredns" / name for name in ("main.go", "go.mod", "go.sum")]
    return layout.tool("coredns", f"{COREDNS}-{files_digest(sources, COMPONENTS)}")


def coredns(layout: Layout) -> Path:
    """Builds the cluster's DNS server with the plugins that `coredns.yaml` names."""
    return _static(coredns_path(layout), COMPONENTS / "coredns")


def _static(target: Path, package: Path) -> Path:
    """Builds one of this folder's commands without shared libraries, so that an image may contain it alone."""
    return _built(target, package, {**os.environ, "CGO_ENABLED": "0"})


def _built(target: Path, package: Path, environment: dict[str, str], stamps: str = "") -> Path:
    """Builds one of this folder's commands; `stamps` are linker flags, as in `_installed`."""
    if not target.exists():
        with _Building(target) as part:
            command = [go(), *_BUILD, f"-ldflags=-s -w {stamps}", "-o", str(part / package.name), "."]
            _run(command, environment, package)
            (part / package.name).replace(target)
    return target


def helm_path(layout: Layout) -> Path:
    """The path of the machine's Helm, else of the binary that `helm` builds."""
    gopath = Path.home() / "go" / "bin" / "helm"
    found = shutil.which("helm") or (str(gopath) if os.access(gopath, os.X_OK) else None)
    return Path(found) if found else layout.tool("helm", _helm_version())


def helm(layout: Layout) -> Path:
    """Returns the machine's Helm, or builds one."""
    found = helm_path(layout)
    if found.exists():
        return found
    major, minor = _major_minor()
    stamp = "helm.sh/helm/v3/pkg/chartutil.k8sVersion"  # else `helm template` assumes Kubernetes v1.20
    stamps = f"-X {stamp}Major={major} -X {stamp}Minor={minor}"
    return _installed(found, f"helm.sh/helm/v3/cmd/helm@{HELM}", stamps)


def _helm_version() -> str:
    return f"{HELM}-k{'.'.join(_major_minor())}"
