"""The kernel's settings that a kubelet changes for the whole machine: noted before it starts, put back after it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from e2e.cluster.layout import write_whole

MOUNT = Path("/proc/sys")
SETTINGS = (
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
)


def settings(mount: Path = MOUNT) -> dict[str, str]:
    """As they are, by name; those that this kernel has."""
    return {name: (mount / name).read_text().strip() for name in SETTINGS if (mount / name).exists()}


def note(file: Path, mount: Path = MOUNT) -> None:
    """Keeps them in a file."""
    write_whole(file, json.dumps(settings(mount)))


def put_back(file: Path, mount: Path = MOUNT) -> None:
    """Sets those that have changed as they were; without the file nothing has. One that can't be set is told of."""
    if not file.exists():
        return
    now = settings(mount)
    for name, value in json.loads(file.read_text()).items():
        if now.get(name) != value:
            try:
                (mount / name).write_text(value)
            except OSError as e:
                print(f"{name} stays {now.get(name)}, and was {value}: {e}", file=sys.stderr)
