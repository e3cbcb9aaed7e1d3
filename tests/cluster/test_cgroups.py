"""The harness's control groups, on a file tree like the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cluster.own import cgroups
from e2e.cluster.own.configs import CGROUP


def test_version_1_groups_take_processes_and_go_again(tmp_path: Path) -> None:
    for name in ("memory", "cpuset"):
        (tmp_path / name).mkdir()
    # the kernel makes these files with a group; here the test makes them first
    group = tmp_path / "cpuset" / CGROUP
    group.mkdir()
    for name, value in (("cpuset.cpus", "0-1"), ("cpuset.mems", "0")):
        (tmp_path / "cpuset" / name).write_text(value)
        (group / name).write_text("")
    cgroups.make(tmp_path)
    assert (group / "cpuset.cpus").read_text() == "0-1"
    assert (group / "cpuset.mems").read_text() == "0"
    assert {g.parent.name for g in cgroups.leftovers(tmp_path)} == {"memory", "cpuset"}
    for name in ("cpuset.cpus", "cpuset.mems"):
        (group / name).unlink()
    (tmp_path / "memory" / CGROUP / "kubepods" / "burstable" / "pod1").mkdir(parents=True)
    cgroups.remove(tmp_path)
    assert not cgroups.leftovers(tmp_path)


def test_version_2_passes_controllers_on(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory")
    (tmp_path / "cgroup.subtree_control").write_text("")
    cgroups.make(tmp_path)
    assert "+memory" in (tmp_path / "cgroup.subtree_control").read_text()
    assert "+memory" in (tmp_path / CGROUP / "cgroup.subtree_control").read_text()


def test_a_group_in_use_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "memory" / CGROUP).mkdir(parents=True)
    (tmp_path / "memory" / CGROUP / "busy").write_text("")  # makes rmdir fail, as a process does
    with pytest.raises(OSError, match=r"busy|not empty|Directory"):
        cgroups.remove(tmp_path, timeout_s=0.1)
