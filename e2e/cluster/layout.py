"""Where the harness keeps what it makes, and the versions that it is made of."""

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
    """The version that the components' Go module pins, as in `v1.36.3`."""
    found = re.search(
        r"^\s*(?:require )?k8s\.io/kubernetes (v[\d.]+)", (COMPONENTS / "go.mod").read_text(), re.MULTILINE
    )
    if found is None:
        raise ValueError("e2e/cluster/components/go.mod requires no k8s.io/kubernetes: run components/pin.sh")
    return found.group(1)


@dataclass(frozen=True, slots=True)
class Layout:
    """The harness's directories, all below one that may be deleted at any time while no cluster is up."""

    cache: Path

    @property
    def state(self) -> Path:
        """Of the cluster that is up: keys, etcd's data, logs. Gone when it is down."""
        return self.cache / "cluster"

    @property
    def record(self) -> Path:
        """Which process is the cluster; written before it does anything."""
        return self.cache / "cluster.json"

    @property
    def first(self) -> Path:
        """Which process is the first in the cluster's PID namespace: all others end before it does."""
        return self.state / "first.json"

    @property
    def kernel(self) -> Path:
        """The machine's settings as they were before the cluster."""
        return self.state / "kernel.json"

    @property
    def containers(self) -> Path:
        """containerd's own store: images stay from one cluster to the next."""
        return self.cache / "containerd"

    @property
    def logs(self) -> Path:
        """Logs of the cluster; those of the last one stay until the next."""
        return self.cache / "logs"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.state / "admin.kubeconfig"

    def tool(self, name: str, key: str) -> Path:
        """A built binary, named after what it was built from."""
        return self.cache / "bin" / f"{name}-{key}"


def default_layout(environment: Mapping[str, str] = os.environ) -> Layout:
    """Below `$XDG_CACHE_HOME`, or `~/.cache`."""
    home = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/root")) / ".cache"
    return Layout(Path(home) / "tartlet" / "e2e")


def write_whole(file: Path, text: str) -> None:
    """Writes a file that is there as a whole or not at all, whenever somebody reads it."""
    part = file.with_suffix(".part")
    part.write_text(text)
    part.replace(file)


def digest(parts: Iterable[bytes]) -> str:
    """A short name for these parts in this order."""
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "big"))
        total.update(part)
    return total.hexdigest()[:16]


def files_digest(files: Iterable[Path], root: Path, extra: Iterable[str] = ()) -> str:
    """A short name for the contents, names and modes of files below `root`, and for some more strings."""
    parts = [e.encode() for e in extra]
    for file in sorted(files):
        mode = "x" if os.access(file, os.X_OK) else "-"
        parts += [str(file.relative_to(root)).encode(), mode.encode(), file.read_bytes()]
    return digest(parts)
