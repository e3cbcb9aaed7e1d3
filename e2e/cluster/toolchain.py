"""Builds Kubernetes, CoreDNS and Helm from their Go modules, once for each version."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

from e2e.cluster.layout import COMPONENTS, COREDNS, HELM, Layout, files_digest, kubernetes_version
from e2e.cluster.requirements import go


def _installed(layout: Layout, name: str, module: str, version: str) -> Path:
    """A command of a module, static."""
    target = layout.tool(name, version)
    if target.exists():
        return target
    with _Building(target) as part:
        environment = {**os.environ, "CGO_ENABLED": "0", "GOBIN": str(part), "GOFLAGS": "-mod=mod"}
        _run([go(), "install", "-ldflags=-s -w", f"{module}@{version}"], environment)
        (part / name).replace(target)
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


def kubernetes(layout: Layout) -> Path:
    """All components in one binary: 5 minutes on two cores where nothing is cached."""
    version = kubernetes_version()
    sources = [COMPONENTS / name for name in ("main.go", "go.mod", "go.sum")]
    target = layout.tool("k8s", f"{version}-{files_digest(sources, COMPONENTS)}")
    if target.exists():
        return target
    major, minor = version.removeprefix("v").split(".")[:2]
    stamp = "k8s.io/component-base/version."  # else nodes report v0.0.0
    flags = f"-s -w -X {stamp}gitVersion={version} -X {stamp}gitMajor={major} -X {stamp}gitMinor={minor}"
    with _Building(target) as part:
        output = part / "k8s"
        _run([go(), "build", "-trimpath", "-ldflags", flags, "-o", str(output), "."], dict(os.environ), COMPONENTS)
        output.replace(target)
    return target


def pause(layout: Layout) -> Path:
    """The program that holds a pod's namespaces open."""
    source = COMPONENTS / "pause" / "main.go"
    target = layout.tool("pause", files_digest([source], COMPONENTS))
    if not target.exists():
        with _Building(target) as part:
            environment = {**os.environ, "CGO_ENABLED": "0"}
            _run(
                [go(), "build", "-trimpath", "-ldflags=-s -w", "-o", str(part / "pause"), "./pause"],
                environment,
                COMPONENTS,
            )
            (part / "pause").replace(target)
    return target


def coredns(layout: Layout) -> Path:
    """The cluster's DNS server, static: its image holds nothing else."""
    return _installed(layout, "coredns", "github.com/coredns/coredns", COREDNS)


def helm(layout: Layout) -> Path:
    """Helm: one that is there, else built."""
    gopath = Path.home() / "go" / "bin" / "helm"
    found = shutil.which("helm") or (str(gopath) if os.access(gopath, os.X_OK) else None)
    return Path(found) if found else _installed(layout, "helm", "helm.sh/helm/v3/cmd/helm", HELM)
