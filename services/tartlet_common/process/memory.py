"""The memory that a process may use: of a setting, of its control groups, or of the machine. Reads files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_UNLIMITED = 1 << 60
"""Version 1 writes a number near 2**63 where there is no limit."""
_LIMIT_FILES = {"cgroup": "memory.limit_in_bytes", "cgroup2": "memory.max"}


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """Bytes that a process may use, and where the number comes from."""

    bytes: int
    source: str  # "setting", "cgroup" or "machine"


def memory_bound(setting_bytes: int = 0, root: Path = Path("/")) -> MemoryBound:
    """Return the setting if it isn't 0, else the least limit of the control groups, else the memory of the machine.

    A limit above the machine's memory is none. `root` replaces `/` in tests.
    """
    if setting_bytes:
        return MemoryBound(setting_bytes, "setting")
    machine = machine_bytes(root)
    limits = [limit for limit in _group_limits(root) if limit < min(machine, _UNLIMITED)]
    return MemoryBound(min(limits), "cgroup") if limits else MemoryBound(machine, "machine")


def machine_bytes(root: Path = Path("/")) -> int:
    """Return the machine's memory in bytes."""
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _group_limits(root: Path) -> Iterator[int]:
    """Yield the limits of the process's groups and of all groups above them, in each hierarchy that limits memory."""
    for kind, mount, group in _groups(root):
        directory = mount / group.lstrip("/")
        while True:
            limit = _read_limit(directory / _LIMIT_FILES[kind])
            if limit is not None:
                yield limit
            if directory == mount or mount not in directory.parents:
                break
            directory = directory.parent


def _groups(root: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield kind of hierarchy, mount point and the process's group below the mount point."""
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return
    mounted = {}
    for line in mounts:  # "36 35 0:30 ROOT MOUNT options [optional ...] - TYPE SOURCE options"
        fields, _, rest = line.partition(" - ")
        kind, _, options = (*rest.split(), "", "", "")[:3]
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split(",")):
            base, place = fields.split()[3:5]
            mounted[kind] = (base, root / place.lstrip("/"))
    for line in groups:
        number, controllers, group = line.split(":", 2)
        kind = "cgroup2" if number == "0" and not controllers else "cgroup"
        if kind not in mounted or (kind == "cgroup" and "memory" not in controllers.split(",")):
            continue
        base, point = mounted[kind]
        if base != "/" and (group == base or group.startswith(base + "/")):  # a container sees its own part alone
            group = group[len(base) :]
        elif ".." in group.split("/"):  # the group lies outside the namespace
            group = ""
        yield kind, point, group


def _read_limit(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None  # "max": none
