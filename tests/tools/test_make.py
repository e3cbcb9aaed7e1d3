"""The Makefile: the list of its help, and the commands of its targets."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def make(repo: Path, *args: str, **env: str) -> str:
    """Runs make without the variables of a make that runs this test."""
    outer = {"MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "ARGS"}
    clean = {k: v for k, v in os.environ.items() if k not in outer}
    command = ["make", "--no-print-directory", *args]
    return subprocess.run(command, cwd=repo, env=clean | env, capture_output=True, text=True, check=True).stdout


def test_the_demo_model_is_trained_compiled_where_a_compiler_is(repo: Path) -> None:
    train = "python -m models.training.train --out models/work/demo"
    assert f"{train} --compiled" in make(repo, "-n", "model", "CXX=sh")  # any program that exists
    assert f"{train}  --minutes 1\n" in make(repo, "-n", "model", "CXX=no-such-compiler", "ARGS=--minutes 1")
    assert "models.training.train --out elsewhere" in make(repo, "-n", "model", "OUT=elsewhere")


def test_a_model_is_measured(repo: Path) -> None:
    assert "python -m models.training.evaluate models/demo" in make(repo, "-n", "eval-model")
    assert "models.training.evaluate other --problems 9" in make(
        repo, "-n", "eval-model", "MODEL=other", "ARGS=--problems 9"
    )


def test_the_tests_of_the_gate_all_tests_and_the_soaks_are_different_runs(repo: Path) -> None:
    assert "python -m tools.testing -k name\n" in make(repo, "-n", "test", "ARGS=-k name")
    assert "python -m e2e.cluster test \n" in make(repo, "-n", "e2e")
    assert "python -m e2e.cluster test --all \n" in make(repo, "-n", "e2e-all")
    assert "CI=1 .venv/bin/python -m pytest -m soak" in make(repo, "-n", "soak")


def test_help_lists_them(repo: Path) -> None:
    text = make(repo, "help")
    assert "  make model " in text
    assert "  make eval-model " in text
    assert "  make e2e " in text
    assert "  make test-gpu " in text
