"""A cluster that comes and goes leaves nothing, however it ends. Runs only while no other is up."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import cgroups
from e2e.cluster.processes import PROC, Process
from e2e.cluster.provider import Own, choose


@pytest.fixture
def own() -> Iterator[Own]:
    found = choose()
    if not isinstance(found, Own):
        pytest.skip("there is another cluster to use here")
    if found.is_up():
        pytest.skip("the cluster is up, and the tests' to use")
    found.down()
    yield found
    found.down()


def traces(own: Own) -> dict[str, object]:
    """What a cluster might leave: mounts, namespaces, control groups, files."""
    namespaces = set()
    for process in PROC.iterdir():
        if process.name.isdigit():
            try:
                namespaces |= {(kind, (process / "ns" / kind).stat().st_ino) for kind in ("net", "pid", "mnt")}
            except OSError:
                continue  # it ended meanwhile
    return {
        "mounts": Path("/proc/mounts").read_text(),
        "namespaces": namespaces,
        "groups": cgroups.leftovers(),
        "state": own.layout.state.exists() or own.layout.record.exists(),
    }


def starting(own: Own, after_s: float) -> subprocess.Popen[bytes]:
    """`up`, so long after its cluster's first process started."""
    process = subprocess.Popen([sys.executable, "-m", "e2e.cluster", "up"])
    end = time.monotonic() + 120
    while Process.read(own.layout.record) is None:
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    time.sleep(after_s)
    return process


@pytest.mark.parametrize("after_s", [0.0, 2.0, 5.0])
def test_ctrl_c_leaves_nothing(own: Own, after_s: float) -> None:
    before = traces(own)
    process = starting(own, after_s)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert traces(own) == before


def test_killed_at_any_time_leaves_nothing_after_down(own: Own) -> None:
    before = traces(own)
    process = starting(own, 4.0)
    process.kill()
    process.wait(60)
    first = Process.read(own.layout.record)
    assert first is not None
    first.send(signal.SIGKILL)  # the cluster itself too
    own.down()
    assert traces(own) == before
