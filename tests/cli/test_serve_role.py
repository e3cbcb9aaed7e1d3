"""`tartlet serve --role X` as pods start it: settings come from the environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from tartlet_cli.commands.serve import serve
from tartlet_cli.console import exits


class _Became(Exception):
    """Instead of becoming another process."""


def _argv(monkeypatch: pytest.MonkeyPatch, *args: str, **env: str) -> list[str]:
    def become(_: str, argv: list[str]) -> None:
        raise _Became(argv)

    monkeypatch.setattr(os, "execv", become)
    for name in ("TARTLET_WORKER_ENGINE", "TARTLET_WORKER_MODEL", "TARTLET_MODEL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(_Became) as became:
        CliRunner().invoke(serve, args, catch_exceptions=False)
    argv: list[str] = became.value.args[0]
    return argv[argv.index("-m") + 1 :]


@pytest.mark.parametrize("role", ["control", "runtime", "operator"])
def test_a_role_gets_no_flag_that_was_not_given(monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    assert _argv(monkeypatch, "--role", role) == [f"tartlet_{role}"]


def test_a_workers_environment_is_not_overruled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _argv(monkeypatch, "--role", "worker", TARTLET_WORKER_ENGINE="fake") == ["tartlet_worker"]
    assert _argv(monkeypatch, "--role", "worker", TARTLET_WORKER_MODEL="/models/x") == ["tartlet_worker"]


def test_a_worker_told_nothing_serves_the_default_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    argv = _argv(monkeypatch, "--role", "worker", TARTLET_MODEL=str(tmp_path))
    assert argv == ["tartlet_worker", "--model", str(tmp_path.resolve())]


def test_a_workers_file_is_overruled_by_flags_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    file = tmp_path / "tartlet.toml"
    file.write_text('[worker]\nengine = "fake"\n')
    told = ("--role", "worker", "--config", str(file))
    assert _argv(monkeypatch, *told, TARTLET_MODEL=str(tmp_path)) == ["tartlet_worker", *told[2:]]
    model = str(tmp_path.resolve())
    argv = _argv(monkeypatch, *told, "--model", model)
    assert argv == ["tartlet_worker", *told[2:], "--engine", "torch", "--model", model]


def test_a_worker_says_itself_what_is_wrong_with_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _argv(monkeypatch, "--role", "worker", TARTLET_WORKER_THREADS="many") == ["tartlet_worker"]


def test_a_flag_that_would_be_ignored_is_refused() -> None:
    for args, refused, because in (
        (("--role", "control", "--model", "/m"), "--model", "--role control"),
        (("--role", "runtime", "--engine", "fake"), "--engine", "--role runtime"),
        (("--role", "worker", "--quiet"), "--quiet", "log file"),
        (("--engine", "fake", "--model", "/m"), "--model", "fake"),
        (("--role", "worker", "--engine", "fake", "--model", "/m"), "--model", "fake"),
    ):
        result = CliRunner().invoke(serve, args)
        assert result.exit_code == exits.USAGE
        start, _, reason = result.output.rpartition(f"Error: {refused}")
        assert start
        assert because in reason


def test_flags_reach_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _argv(monkeypatch, "--role", "worker", "--engine", "fake") == ["tartlet_worker", "--engine", "fake"]
