"""Clusters leave nothing behind, however they end.

The clusters here have their own directory, so that the image store of other clusters stays. Components and images in
that directory are links to the built ones.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.cluster.artifacts import toolchain
from e2e.cluster.layout import ROOT, Layout, default_layout
from e2e.cluster.own import cgroups, kernel
from e2e.cluster.own.configs import CGROUP
from e2e.cluster.own.processes import PROC, Process
from e2e.cluster.provider import Own, choose

UP_S = 20.0
"""The harness promises that a built cluster is up within this time."""

COMPONENTS_S = 120.0


@dataclass(frozen=True, slots=True)
class Place:
    """A cache of the harness, and the environment that makes the command line use this cache."""

    layout: Layout
    environment: dict[str, str]

    def own(self) -> Own:
        """Returns the cluster of this cache."""
        return Own(self.layout, self.environment)

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Runs a command of the harness."""
        return subprocess.Popen(
            [sys.executable, "-m", "e2e.cluster", *command],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def started(self, *command: str, after_s: float) -> subprocess.Popen[str]:
        """Starts a command, and returns a while after the cluster's first process has started."""
        process = self.start(*command)
        end = time.monotonic() + COMPONENTS_S
        while Process.read(self.layout.record) is None:
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < end
            time.sleep(0.05)
        time.sleep(after_s)
        return process


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """A cache with links to everything that is built."""
    there = choose()
    if not isinstance(there, Own):
        pytest.skip("there is another cluster to use here")
    if there.is_up():
        pytest.skip("the cluster is up, and the tests' to use")
    there.down()  # left by a cluster that was killed
    there.build_components()
    home = default_layout().cache / "lifecycle"
    environment = {**os.environ, "XDG_CACHE_HOME": str(home)}
    layout = default_layout(environment)
    shutil.rmtree(home, ignore_errors=True)
    layout.cache.mkdir(parents=True)
    for built in ("bin", "images"):
        (layout.cache / built).symlink_to(there.layout.cache / built)
    yield Place(layout, environment)
    Own(layout, environment).down()
    shutil.rmtree(home)


@pytest.fixture
def before(place: Place, tmp_path: Path) -> Iterator[dict[str, set[str]]]:
    """The machine's state before the test, without traces of a kubelet. After the test no cluster is up."""
    kernel.note(tmp_path / "kernel.json")
    (kernel.MOUNT / "vm/overcommit_memory").write_text("0")
    yield traces(place.layout)
    place.own().down()
    kernel.put_back(tmp_path / "kernel.json")


def traces(layout: Layout) -> dict[str, set[str]]:
    """Returns everything that a cluster might leave behind."""
    return {
        "mounts": set(Path("/proc/mounts").read_text().splitlines()),
        "links": {link.name for link in Path("/sys/class/net").iterdir()},
        "groups": {str(group) for group in cgroups.leftovers()},
        "settings": {f"{name}={value}" for name, value in kernel.settings().items()},
        "state": {str(f) for f in (layout.state, layout.record) if f.exists()},
        "processes": set(processes(layout)),
    }


def processes(layout: Layout) -> Iterator[str]:
    """Returns processes of the cluster, found by their environment or by the pods' control group."""
    mark = f"TARTLET_E2E_CLUSTER={layout.cache}".encode()
    for process in PROC.iterdir():
        if process.name.isdigit():
            try:
                environment = (process / "environ").read_bytes().split(b"\0")
                if mark in environment or f"/{CGROUP}/" in (process / "cgroup").read_text():
                    yield (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue  # the process has ended meanwhile


def new(before: dict[str, set[str]], layout: Layout) -> dict[str, set[str]]:
    """Returns everything that is new since `before`."""
    return {kind: found for kind, there in traces(layout).items() if (found := there - before[kind])}


def say(text: str) -> None:
    """Prints a measured time, as `step` does."""
    sys.stdout.write(f"{text}\n")


def test_it_comes_up_in_time_and_goes_without_a_trace(place: Place, before: dict[str, set[str]]) -> None:
    start = time.monotonic()
    up = place.start("up")
    said = up.communicate(timeout=120)[0]
    up_s = time.monotonic() - start
    say(f"\n{said}  up: {up_s:.1f} s")
    assert up.returncode == 0
    seen = new(before, place.layout)
    assert seen.keys() >= {"groups", "settings", "state", "processes"}  # the search itself works
    cluster = place.own()
    assert cluster.is_up()
    assert " Running " in cluster.run(*cluster.kubectl(), "get", "pods", "-n", "kube-system").stdout
    again = place.start("up")
    assert again.communicate(timeout=60)[0] == ""
    start = time.monotonic()
    down = place.start("down")
    assert down.communicate(timeout=60)[0] == ""
    say(f"  down: {time.monotonic() - start:.1f} s")
    assert down.returncode == 0
    assert new(before, place.layout) == {}
    assert up_s <= UP_S


@pytest.mark.parametrize(
    ("command", "after_s", "number"),
    [
        (["up"], 0.0, signal.SIGINT),
        (["up"], 2.0, signal.SIGINT),
        (["up"], 6.0, signal.SIGINT),
        (["test", "e2e/tests/programs/test_answers.py"], 3.0, signal.SIGTERM),  # as CI's time limit ends it
    ],
)
def test_an_interrupted_start_leaves_nothing(
    place: Place, before: dict[str, set[str]], command: list[str], after_s: float, number: signal.Signals
) -> None:
    process = place.started(*command, after_s=after_s)
    process.send_signal(number)
    said = process.communicate(timeout=90)[0]
    assert process.returncode == 130, said
    assert new(before, place.layout) == {}


def test_killed_at_once_it_leaves_nothing_after_down(place: Place, before: dict[str, set[str]]) -> None:
    process = place.started("up", after_s=4.0)
    process.kill()
    process.communicate(timeout=60)
    first = Process.read(place.layout.record)
    assert first is not None
    first.send(signal.SIGKILL)  # the cluster itself too
    place.own().down()
    assert new(before, place.layout) == {}


def test_a_component_that_fails_is_named_and_leaves_nothing(place: Place, before: dict[str, set[str]]) -> None:
    links = place.layout.cache / "bin"
    built = links.readlink()
    links.unlink()
    links.mkdir()
    try:
        for tool in built.iterdir():
            (links / tool.name).symlink_to(tool)
        broken = toolchain.kubernetes_path(place.layout)
        broken.unlink()
        broken.write_text("#!/bin/sh\nexit 1\n")
        broken.chmod(0o755)
        process = place.start("up")
        said = process.communicate(timeout=120)[0]
    finally:
        shutil.rmtree(links)
        links.symlink_to(built)
    assert process.returncode == 1
    assert "apiserver ended while it started" in said
    assert str(place.layout.logs) in said
    assert new(before, place.layout) == {}
