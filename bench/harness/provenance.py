"""Where a number comes from: commit, date, flags, machine and load. Every JSON file of a benchmark holds this."""

from __future__ import annotations

import datetime as dt
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[2]


def machine() -> dict[str, Any]:
    """Describe the hardware and the interpreter."""
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return {"cpu": model, "cores": len(os.sched_getaffinity(0)), "python": platform.python_version()}


def revision(checkout: Path) -> str:
    """Name the commit of a checkout, with a + if files differ from it; "unknown" without git."""
    named = _git(checkout, "rev-parse", "--short=12", "HEAD")
    if not named:
        return "unknown"
    return named + ("+" if _git(checkout, "status", "--porcelain", "--untracked-files=no") else "")


def provenance(flags: Sequence[str]) -> dict[str, Any]:
    """Describe a run that begins now: commit, date in UTC, flags, machine, and the load of the last minute."""
    return {
        "commit": revision(HERE),
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "flags": list(flags),
        "machine": machine(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def _git(checkout: Path, *args: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(checkout), *args], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
