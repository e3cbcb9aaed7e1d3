"""Builds Kubernetes, CoreDNS and Helm from their Go modules, once for each version."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

from e2e.cluster.artifacts.requirements import go
from e2e.cluster.layout import COMPONENTS, COREDNS, HELM, Layout, files_digest, kubernetes_version

_BUILD = ("build", "-trimpath", "-buildvcs=false")  # the repository may belong to a user whom git doesn't trust


def is_built(layout: Layout) -> bool:
    """Whether nothing is left to build."""
    tools = (kubernetes_path(layout), pause_path(layout), coredns_path(layout), helm_path(layout))
    return all(tool.exists() for tool in tools)


def _installed(target: Path, command: str, stamps: str) -> Path:
    """A command of a module, as `go install` takes it; `stamps`: flags of the linker that set its variables."""
    if target.exists():
        return target
    with _Building(target) as part:
        environment = {**os.environ, "CGO_ENABLED": "0", "GOBIN": str(part), "GOFLAGS": "-mod=mod -buildvcs=false"}
        _run([go(), "install", f"-ldflags=-s -w {stamps}", command], environment)
        next(part.iterdir()).replace(target)
    return target


class _Building:
    """A directory for what isn't complete yet; says how long it took."""

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
    # niced: a build must not starve what else the machine does
    subprocess.run(["nice", "-n", "10", *command], check=True, env=environment, cwd=cwd)


def kubernetes_path(layout: Layout) -> Path:
    """Where `kubernetes` puts it."""
    sources = [COMPONENTS / name for name in ("main.go", "go.mod", "go.sum")]
    return layout.tool("k8s", f"{kubernetes_version()}-{files_digest(sources, COMPONENTS)}")


def kubernetes(layout: Layout) -> Path:
    """All components in one binary: 5 minutes on two cores where nothing is cached."""
    target, version = kubernetes_path(layout), kubernetes_version()
    major, minor = _major_minor()
    stamp = "k8s.io/component-base/version."  # else nodes report v0.0.0
    stamps = f"-X {stamp}gitVersion={version} -X {stamp}gitMajor={major} -X {stamp}gitMinor={minor}"
    return _built(target, COMPONENTS, dict(os.environ), stamps)


def _major_minor() -> tuple[str, str]:
    major, minor = kubernetes_version().removeprefix("v").split(".")[:2]
    return major, minor


def pause_path(layout: Layout) -> Path:
    """Where `pause` puts it."""
    return layout.tool("pause", files_digest([COMPONENTS / "pause" / "main.go"], COMPONENTS))


def pause(layout: Layout) -> Path:
    """The program that holds a pod's namespaces open."""
    return _static(pause_path(layout), COMPONENTS / "pause")


def coredns_path(layout: Layout) -> Path:
    """Where `coredns` puts it."""
    sources = [COMPONENTS / "coredns" / name for name in ("main.go", "go.mod", "go.sum")]
    return layout.tool("coredns", f"{COREDNS}-{files_digest(sources, COMPONENTS)}")


def coredns(layout: Layout) -> Path:
    """The cluster's DNS server, with the plugins that it needs here."""
    return _static(coredns_path(layout), COMPONENTS / "coredns")


def _static(target: Path, package: Path) -> Path:
    """A command of ours as an image may hold it alone."""
    return _built(target, package, {**os.environ, "CGO_ENABLED": "0"})


def _built(target: Path, package: Path, environment: dict[str, str], stamps: str = "") -> Path:
    """A command of ours; `stamps`: as `_installed` has them."""
    if not target.exists():
        with _Building(target) as part:
            command = [go(), *_BUILD, f"-ldflags=-s -w {stamps}", "-o", str(part / package.name), "."]
            _run(command, environment, package)
            (part / package.name).replace(target)
    return target


def helm_path(layout: Layout) -> Path:
    """One that is there, else where `helm` puts it."""
    gopath = Path.home() / "go" / "bin" / "helm"
    found = shutil.which("helm") or (str(gopath) if os.access(gopath, os.X_OK) else None)
    return Path(found) if found else layout.tool("helm", _helm_version())


def helm(layout: Layout) -> Path:
    """Helm: one that is there, else built."""
    found = helm_path(layout)
    if found.exists():
        return found
    major, minor = _major_minor()
    stamp = "helm.sh/helm/v3/pkg/chartutil.k8sVersion"  # else `helm template` takes clusters to be v1.20
    stamps = f"-X {stamp}Major={major} -X {stamp}Minor={minor}"
    return _installed(found, f"helm.sh/helm/v3/cmd/helm@{HELM}", stamps)


def _helm_version() -> str:
    return f"{HELM}-k{'.'.join(_major_minor())}"
