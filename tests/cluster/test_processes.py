"""Processes are told apart from later ones with the same number."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.cluster.own.processes import Process, in_namespace


def test_a_process_is_alive_until_it_ends(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        process = Process.of(child.pid)
        process.write(tmp_path / "record")
        assert Process.read(tmp_path / "record") == process
        assert process.alive()
        assert not process.wait(0.05)
        process.send(signal.SIGKILL)
        assert process.wait(5)  # a zombie, because no process has waited for it
        assert not process.alive()


def test_a_number_used_again_is_another_process() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        earlier = replace(Process.of(child.pid), started=1)
        assert not earlier.alive()
        earlier.send(signal.SIGKILL)
        assert replace(Process.of(os.getpid()), started=1).children() == []
        assert child.pid in Process.of(os.getpid()).children()
        assert child.poll() is None
        child.kill()


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(ProcessLookupError):
        Process.of(2**22 + 1)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}'])
def test_a_broken_record_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "record").write_text(text)
    assert Process.read(tmp_path / "record") is None


def test_members_of_a_namespace() -> None:
    own = Path("/proc/self/ns/pid").stat().st_ino
    with subprocess.Popen(["sleep", "60"]) as child:
        assert child.pid in set(in_namespace("pid", own))
        assert not set(in_namespace("pid", 1))
        child.kill()
