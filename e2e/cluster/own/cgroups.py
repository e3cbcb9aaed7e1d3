"""The control group below which all pods of the cluster are, in each hierarchy (version 1) or the one (version 2)."""

from __future__ import annotations

import os
import time
from pathlib import Path

from e2e.cluster.own.configs import CGROUP

MOUNT = Path("/sys/fs/cgroup")
_CONTROLLERS = "+cpu +cpuset +memory +pids +io"


def hierarchies(mount: Path = MOUNT) -> list[Path]:
    """The roots of the hierarchies that pods live in."""
    if (mount / "cgroup.controllers").exists():
        return [mount]
    return sorted(p for p in mount.iterdir() if p.is_dir() and not p.is_symlink())


def make(mount: Path = MOUNT) -> None:
    """Makes the group; the kubelet wants it to be there."""
    for root in hierarchies(mount):
        group = root / CGROUP
        group.mkdir(exist_ok=True)
        if (root / "cgroup.subtree_control").exists() and root == mount:
            for parent in (root, group):
                (parent / "cgroup.subtree_control").write_text(_CONTROLLERS)
        for name in ("cpuset.cpus", "cpuset.mems"):  # empty in a new one of version 1: no process could enter
            if root != mount and (group / name).exists():
                (group / name).write_text((root / name).read_text())


def leftovers(mount: Path = MOUNT) -> list[Path]:
    """The group in each hierarchy where it is."""
    return [root / CGROUP for root in hierarchies(mount) if (root / CGROUP).is_dir()]


def remove(mount: Path = MOUNT, timeout_s: float = 10.0) -> None:
    """Removes the group and all below it; processes that just ended may hold it for a moment.

    Raises:
        OSError: Something still runs in it.
    """
    end = time.monotonic() + timeout_s
    for group in leftovers(mount):
        for directory, _, _ in os.walk(group, topdown=False):
            while True:
                try:
                    Path(directory).rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    if time.monotonic() > end:
                        raise
                    time.sleep(0.05)
