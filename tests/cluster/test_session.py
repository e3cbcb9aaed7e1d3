"""One run of the tests: what is run, and what is left when it ends."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from e2e.cluster import session
from e2e.cluster.artifacts.images import Image
from e2e.cluster.artifacts.toolchain import helm_path
from e2e.cluster.layout import HELM, ROOT, default_layout
from tests.chart import render


class Recorded:
    """A cluster that notes what is asked of it."""

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

    def kubectl(self) -> list[str]:
        return ["kubectl"]

    def helm(self) -> list[str]:
        return ["helm"]

    def within(self) -> list[str]:
        return []

    def image(self) -> Image:
        return Image("image", Path())


def test_tests_that_want_an_api_server_are_found_and_come_first() -> None:
    found = session.api_tests()
    assert {"tests/operator/live/test_inferlets.py", "tests/operator/live/test_pools.py"} <= set(found)
    assert "tests/operator/machinery/test_work_queue.py" not in found
    first, beside = session.commands([])
    assert first[-len(found) - 1 :] == [*found, "e2e/tests"]
    assert {"tests/chart/test_chart.py", "tests/chart/test_rbac.py", "tests/cli/kube/test_run.py"} <= set(beside)
    assert [command[-2:] for command in session.commands(["-k", "pools"])] == [["-k", "pools"]] * 2


def test_the_chart_is_rendered_with_the_clusters_helm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(pytest.skip.Exception, match=HELM):
        render.helm()
    built = helm_path(default_layout())
    built.parent.mkdir(parents=True)
    built.touch(0o700)
    assert render.helm() == str(built)


def test_named_tests_are_run_alone() -> None:
    named = "e2e/tests/pools/test_pools.py::test_a_rolling_update_fails_no_program"
    (command,) = session.commands(["-x", named])
    assert command[-2:] == ["-x", named]
    assert not {"e2e/tests", *session.api_tests()} & set(command)


@pytest.mark.parametrize("up", [True, False])
@pytest.mark.parametrize("end", [0, 1, KeyboardInterrupt()])
def test_a_cluster_that_was_not_up_is_down_however_the_tests_end(
    monkeypatch: pytest.MonkeyPatch, end: int | BaseException, *, up: bool
) -> None:
    def run(_: list[list[str]], __: dict[str, str]) -> int:
        if isinstance(end, BaseException):
            raise end
        return end

    monkeypatch.setattr(session, "_pytest", run)
    cluster = Recorded(up=up)
    if isinstance(end, BaseException):
        with pytest.raises(KeyboardInterrupt):
            session.test(cluster, [])
    else:
        assert session.test(cluster, []) == end
    assert cluster.calls == (["build"] if up else ["build", "down"])


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_pytest_runs_at_the_root_in_a_session_of_its_own() -> None:
    program = f"import os; raise SystemExit(4 if (os.getcwd(), os.getsid(0)) == ({str(ROOT)!r}, os.getpid()) else 6)"
    assert session._pytest([python(program)], {}) == 4


@pytest.mark.parametrize(("ends", "status"), [((0, 0), 0), ((0, 1), 1), ((1, 0), 1), ((5, 0), 0), ((5, 5), 5)])
def test_a_failure_beside_is_one_and_one_that_finds_no_test_is_none(ends: tuple[int, ...], status: int) -> None:
    assert session._pytest([python(f"raise SystemExit({end})") for end in ends], {}) == status


def test_what_is_said_beside_is_shown_and_whoever_is_left_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    waits = "import time\nprint('waits', flush=True)\ntry: time.sleep(60)\nexcept KeyboardInterrupt: print('tidied up')"

    def interrupted(*_: object) -> int:
        time.sleep(1)
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "_END_S", 10.0)
    wait = subprocess.Popen.wait
    monkeypatch.setattr(subprocess.Popen, "wait", lambda p, s=None: wait(p, s) if s else interrupted())
    with pytest.raises(KeyboardInterrupt):
        session._pytest([python("import time; time.sleep(60)"), python(waits)], {})
    assert capfdbinary.readouterr().out == b"waits\ntidied up\n"
