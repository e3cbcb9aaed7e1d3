"""A machine that can have no cluster gets the reason in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from e2e.cluster.artifacts import requirements
from e2e.cluster.artifacts.requirements import Unfit
from e2e.cluster.own import fitness
from tests.cluster.programs import program


def line_of(error: pytest.ExceptionInfo[Unfit]) -> str:
    """Returns the message, and checks that it is one line."""
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.skipif(os.getuid() != 0, reason="namespaces are root's to make")
def test_what_the_kernel_refuses_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitness, "TRIED", {"flying carpets": "echo no >&2; echo 'not in this bazaar' >&2; exit 1"})
    with pytest.raises(Unfit) as error:
        fitness.sandbox(tmp_path)
    assert line_of(error) == "this machine allows no flying carpets: not in this bazaar"
    assert list(tmp_path.iterdir()) == []


def test_without_unshare_the_line_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "bin" / "unshare", "echo 'unshare: Operation not permitted' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin")
    with pytest.raises(Unfit) as error:
        fitness.sandbox(tmp_path / "cache")
    assert line_of(error) == "this machine allows no namespaces: unshare: Operation not permitted"


def test_control_groups_that_cannot_be_made_are_named(tmp_path: Path) -> None:
    with pytest.raises(Unfit) as error:
        fitness.control_groups(tmp_path / "none")
    assert line_of(error).startswith("this machine allows no control groups: ")
    (tmp_path / "memory").mkdir()
    fitness.control_groups(tmp_path)
    assert list((tmp_path / "memory").iterdir()) == []


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'go: requires go >= 1.26' >&2; exit 1", "go: requires go >= 1.26"),
        ('[ "$#" -eq 2 ] && exit 0; echo "dial tcp: no such host" >&2; exit 1', "dial tcp: no such host"),
        ("sleep 30", "within 1 s"),
    ],
)
def test_a_go_that_cannot_build_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    program(tmp_path / "go", script)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(fitness, "_ANSWER_S", 1)
    with pytest.raises(Unfit) as error:
        fitness.modules()
    assert said in line_of(error)


def test_a_mirror_that_does_not_answer_is_named() -> None:
    with pytest.raises(Unfit) as error:
        fitness.answers("http://127.0.0.1:1/debian")
    assert line_of(error).startswith("http://127.0.0.1:1/debian doesn't answer: ")


def test_an_apt_that_fails_is_named(tmp_path: Path) -> None:
    apt = program(tmp_path / "apt-get", "echo 'Reading...'; echo 'E: no mirror' >&2; exit 100")
    with pytest.raises(Unfit) as error:
        requirements._apt(f"{apt} update", {})
    assert line_of(error).endswith("update` failed: E: no mirror")
