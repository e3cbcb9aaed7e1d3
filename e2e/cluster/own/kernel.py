"""Saves the kernel settings that a kubelet changes for the whole machine, and restores them."""

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
    """Returns the present settings by name; a setting that this kernel lacks is left out."""
    return {name: (mount / name).read_text().strip() for name in SETTINGS if (mount / name).exists()}


def note(file: Path, mount: Path = MOUNT) -> None:
    """Saves the settings in a file."""
    write_whole(file, json.dumps(settings(mount)))


def put_back(file: Path, mount: Path = MOUNT) -> None:
    """Restores the saved settings that have changed and prints those that can't be set. No-op without the file."""
    if not file.exists():
        return
    now = settings(mount)
    for name, value in json.loads(file.read_text()).items():
        if now.get(name) != value:
            try:
                (mount / name).write_text(value)
            except OSError as e:
                print(f"{name} stays {now.get(name)}, and was {value}: {e}", file=sys.stderr)
