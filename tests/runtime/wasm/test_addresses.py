"""A process that may not reserve what the sandbox takes."""

from __future__ import annotations

import subprocess
import sys

START = """
import resource
resource.setrlimit(resource.RLIMIT_AS, ({soft}, {hard}))
from tartlet_runtime.wasm import HostConfig, WasmHost
WasmHost(HostConfig(max_guests=8, max_spares=1)).close()
"""


def start(soft: int, hard: int) -> subprocess.CompletedProcess[str]:
    """A host of 74 slots, which take 592 GiB of addresses, in a process with limits of so many GiB; -1: none."""
    limits = {name: -1 if gib < 0 else gib << 30 for name, gib in (("soft", soft), ("hard", hard))}
    return subprocess.run([sys.executable, "-c", START.format(**limits)], capture_output=True, text=True, check=False)


def test_a_limit_that_the_pool_does_not_fit_is_a_typed_error() -> None:
    failed = start(100, 100)
    assert failed.returncode == 1  # no abort
    assert (
        "InvalidConfig: configuration of runtime: it reserves 592 GiB of addresses for its sandbox, and may have 100.0"
        in failed.stderr
    )
    assert "ulimit -v" in failed.stderr


def test_a_limit_that_may_be_lifted_is() -> None:
    lifted = start(100, -1)
    assert (lifted.returncode, lifted.stderr) == (0, "")
