"""Makes and removes the control group of all pods, in each hierarchy of version 1 or in the one of version 2."""

from __future__ import annotations

import os
import time
from pathlib import Path

from e2e.cluster.own.configs import CGROUP

MOUNT = Path("/sys/fs/cgroup")
_CONTROLLERS = "+cpu +cpuset +memory +pids +io"
_WEIGHTS = {"cpu.shares": "4096", "cpu.weight": "400"}
"""Processor time of all pods together, where other processes want some: as much as four of these get."""


def hierarchies(mount: Path = MOUNT) -> list[Path]:
    """Returns the roots of the hierarchies that hold pods."""
    if (mount / "cgroup.controllers").exists():
        return [mount]
    return sorted(p for p in mount.iterdir() if p.is_dir() and not p.is_symlink())


def make(mount: Path = MOUNT) -> None:
    """Makes the group, which the kubelet expects to exist."""
    for root in hierarchies(mount):
        group = root / CGROUP
        group.mkdir(exist_ok=True)
        if (root / "cgroup.subtree_control").exists() and root == mount:
            for parent in (root, group):
                (parent / "cgroup.subtree_control").write_text(_CONTROLLERS)
        for name in ("cpuset.cpus", "cpuset.mems"):  # empty in a new group of version 1, which then lets no process in
            if root != mount and (group / name).exists():
                (group / name).write_text((root / name).read_text())
        for name, weight in _WEIGHTS.items():
            if (group / name).exists():
                (group / name).write_text(weight)


def leftovers(mount: Path = MOUNT) -> list[Path]:
    """Returns the group's directory in each hierarchy that has the group."""
    return [root / CGROUP for root in hierarchies(mount) if (root / CGROUP).is_dir()]


def remove(mount: Path = MOUNT, timeout_s: float = 10.0) -> None:
    """Removes the group and all groups below it. Processes that have just ended may keep it busy for a moment.

    Raises:
        OSError: A process still runs in the group.
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
