"""One run of the tests: the tests that are chosen, and the cluster that is left when the run ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from e2e.cluster import session
from e2e.cluster.artifacts.images import Image
from e2e.cluster.artifacts.toolchain import helm_path
from e2e.cluster.layout import default_layout
from e2e.cluster.own.cluster import Failed
from e2e.cluster.turn import HELD, my_turn
from tests.chart import render
from tools.testing.runs import Part, Runner


class Recorded:
    """A cluster that notes the calls that it gets."""

    def __init__(self, *, up: bool) -> None:
        self.was_up, self.calls = up, list[str]()

    def ensure(self) -> None:
        self.calls.append("ensure")

    def build(self) -> None:
        self.calls.append("build")

    def up(self) -> None:
        self.calls.append("up")

    def is_up(self) -> bool:
        return self.was_up

    def down(self) -> None:
        self.calls.append("down")

    def next_image(self) -> Image:
        raise NotImplementedError

    def kubectl(self) -> list[str]:
        return ["kubectl"]

    def helm(self) -> list[str]:
        return ["helm"]

    def within(self) -> list[str]:
        return []

    def redis(self) -> str:
        return ""

    def image(self) -> Image:
        return Image("image", Path())


def test_without_arguments_the_tests_of_the_gate_are_run() -> None:
    assert session.part(["-k", "pools"]).arguments[-5:] == ("e2e/tests", "-m", "not beyond_gate", "-k", "pools")


def test_all_runs_the_tests_beyond_the_gate_too() -> None:
    assert session.part(["--all"]).arguments[-1] == "e2e/tests"


def test_named_tests_are_run_alone_whether_they_gate_or_not() -> None:
    named = "e2e/tests/pools/test_pools.py::test_a_rolling_update_fails_no_program"
    arguments = session.part(["-x", named]).arguments
    assert arguments[-2:] == ("-x", named)
    assert not {"e2e/tests", "-m"} & set(arguments)


def test_the_chart_is_rendered_with_the_clusters_helm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(pytest.skip.Exception):
        render.helm()
    built = helm_path(default_layout())
    built.parent.mkdir(parents=True)
    built.touch(0o700)
    assert render.helm() == str(built)


@pytest.mark.parametrize("up", [True, False])
@pytest.mark.parametrize("end", [0, 1, KeyboardInterrupt()])
def test_a_cluster_that_was_not_up_is_down_however_the_tests_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: int | BaseException, *, up: bool
) -> None:
    def run(_: Runner, __: Sequence[Part]) -> int:
        if isinstance(end, BaseException):
            raise end
        return end

    monkeypatch.setattr(Runner, "run", run)
    cluster = Recorded(up=up)
    if isinstance(end, BaseException):
        with pytest.raises(KeyboardInterrupt):
            session.run(cluster, [], tmp_path)
    else:
        assert session.run(cluster, [], tmp_path) == end
    assert cluster.calls == (["build"] if up else ["build", "down"])


def test_a_second_run_waits_for_the_first_and_nothing_else_may_take_the_cluster_down(tmp_path: Path) -> None:
    began = threading.Event()

    def second() -> None:
        with my_turn(tmp_path, wait=True):
            began.set()

    with my_turn(tmp_path, wait=False):
        thread = threading.Thread(target=second)
        thread.start()
        assert not began.wait(0.2)
        with pytest.raises(Failed), my_turn(tmp_path, wait=False):
            pass
    assert began.wait(10)
    thread.join()


def test_a_command_that_has_the_cluster_keeps_it_until_it_ends_and_its_own_run_does_not_wait(
    tmp_path: Path, repo: Path
) -> None:
    within = f"""
import sys
from pathlib import Path
from e2e.cluster.turn import my_turn
with my_turn(Path({str(tmp_path)!r}), wait=False):
    print("within", flush=True)
print("after", flush=True)
sys.stdin.read()
"""
    outer = f"""
import sys
from pathlib import Path
from e2e.cluster.turn import with_turn
with_turn(Path({str(tmp_path)!r}), [sys.executable, "-c", {within!r}])
"""
    clean = {k: v for k, v in os.environ.items() if k != HELD}
    command = [sys.executable, "-c", outer]
    with subprocess.Popen(
        command, cwd=repo, env=clean, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["within\n", "after\n"]
        with pytest.raises(Failed), my_turn(tmp_path, wait=False):
            pass
        process.communicate()
    with my_turn(tmp_path, wait=False):
        pass
