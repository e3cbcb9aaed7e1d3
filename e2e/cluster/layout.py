"""Names the harness's directories and the versions of the components."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMPONENTS = Path(__file__).resolve().parent / "components"

COREDNS = "v1.14.7"
HELM = "v3.22.0"
DEBIAN = "bookworm"


def kubernetes_version() -> str:
    """Returns the Kubernetes version that the components' Go module pins, such as `v1.36.3`."""
    found = re.search(
        r"^\s*(?:require )?k8s\.io/kubernetes (v[\d.]+)", (COMPONENTS / "go.mod").read_text(), re.MULTILINE
    )
    if found is None:
        raise ValueError("e2e/cluster/components/go.mod requires no k8s.io/kubernetes: run components/pin.sh")
    return found.group(1)


@dataclass(frozen=True, slots=True)
class Layout:
    """The harness's directories, all below one cache directory that may be deleted while no cluster is up."""

    cache: Path

    @property
    def state(self) -> Path:
        """Keys, etcd's data and configuration of the running cluster; removed with the cluster."""
        return self.cache / "cluster"

    @property
    def record(self) -> Path:
        """Identifies the cluster's process; written before that process does anything."""
        return self.cache / "cluster.json"

    @property
    def first(self) -> Path:
        """Identifies the first process in the cluster's PID namespace; all others end before it."""
        return self.state / "first.json"

    @property
    def kernel(self) -> Path:
        """The machine's kernel settings from before the cluster."""
        return self.state / "kernel.json"

    @property
    def containers(self) -> Path:
        """containerd's store, which keeps images from one cluster to the next."""
        return self.cache / "containerd"

    @property
    def logs(self) -> Path:
        """Logs of the running or the last cluster."""
        return self.cache / "logs"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.state / "admin.kubeconfig"

    def tool(self, name: str, key: str) -> Path:
        """Returns the path of a built binary; `key` identifies the inputs of the build."""
        return self.cache / "bin" / f"{name}-{key}"


def default_layout(environment: Mapping[str, str] = os.environ) -> Layout:
    """Returns the layout below `$XDG_CACHE_HOME`, or below `~/.cache`."""
    home = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/root")) / ".cache"
    return Layout(Path(home) / "tartlet" / "e2e")


def write_whole(file: Path, text: str) -> None:
    """Writes a file atomically: a reader finds the whole text or no file."""
    part = file.with_suffix(".part")
    part.write_text(text)
    part.replace(file)


def digest(parts: Iterable[bytes]) -> str:
    """Returns a short digest of these parts in this order."""
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "big"))
        total.update(part)
    return total.hexdigest()[:16]


def files_digest(files: Iterable[Path], root: Path, extra: Iterable[str] = ()) -> str:
    """Returns a short digest of the contents, names and modes of files below `root`, and of further strings."""
    parts = [e.encode() for e in extra]
    for file in sorted(files):
        mode = "x" if os.access(file, os.X_OK) else "-"
        parts += [str(file.relative_to(root)).encode(), mode.encode(), file.read_bytes()]
    return digest(parts)
