"""Names and installs the programs that a machine needs to run a cluster of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

PACKAGES = {
    "etcd": "etcd-server",
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "mount": "mount",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "redis-server": "redis-server",
}
"""The Debian package of each program."""

SYSTEM_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"

Look = Callable[[str], bool]


class Unfit(RuntimeError):
    """This machine can't have a cluster of its own; the message says what to do."""


def on_path(name: str) -> bool:
    """Whether a program is on PATH or in the system's directories."""
    if name.startswith("/"):
        return os.access(name, os.X_OK)
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}") is not None


def missing_packages(look: Look = on_path) -> list[str]:
    """Returns the Debian packages of the missing programs."""
    return sorted({package for program, package in PACKAGES.items() if not look(program)})


def go() -> str:
    """Returns the path of the Go toolchain.

    Raises:
        Unfit: Go is not installed.
    """
    found = shutil.which("go") or next((p for p in ("/usr/local/go/bin/go",) if os.access(p, os.X_OK)), None)
    if found is None:
        raise Unfit("Go is not installed: install Go 1.26 or later (https://go.dev/dl), or set KUBECONFIG to a cluster")
    return found


def ensure(environment: Mapping[str, str] = os.environ, *, uid: int | None = None, look: Look = on_path) -> None:
    """Checks that all programs are installed; as root in CI, installs the missing Debian packages.

    Raises:
        Unfit: The user is not root, or a program is missing.
    """
    if (os.getuid() if uid is None else uid) != 0:
        raise Unfit(
            "a cluster of its own needs root: run as root, install Docker and kind, or set KUBECONFIG to a cluster"
        )
    missing = missing_packages(look)
    if not missing:
        return
    install = f"apt-get install -y --no-install-recommends {' '.join(missing)}"
    if environment.get("CI") and Path("/usr/bin/apt-get").exists():
        for command in ("apt-get update -qq", install):
            _apt(command, environment)
        missing = missing_packages(look)
    if missing:
        raise Unfit(f"not installed: {', '.join(missing)}; run: {install}")


def _apt(command: str, environment: Mapping[str, str]) -> None:
    quiet = {**environment, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False, env=quiet)
    if done.returncode != 0:
        raise Unfit(f"`{command}` failed: {last_line(done.stderr or done.stdout)}")


def last_line(text: str) -> str:
    """Returns the last line that isn't empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"
