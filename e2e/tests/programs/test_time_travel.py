"""A program fails on the cluster, and is stepped through without an engine, as docs/time-travel.md tells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from e2e.cluster.kube import Kube, step
from e2e.tests.support.person import Person, person
from tests.cli.sessions import program_of, sessions, shown_by, without_engine
from tests.cli.test_time_travel import PAGE


@pytest.fixture
def editor(kube: Kube, tmp_path: Path) -> Iterator[Person]:
    """A person with the release's editor role."""
    (tmp_path / "person").mkdir()
    yield from person(kube, "editor", tmp_path / "person")


def test_a_program_that_failed_on_the_cluster_is_stepped_through_without_an_engine(
    editor: Person, demo_pool: str, tmp_path: Path
) -> None:
    text = PAGE.read_text()
    (tmp_path / "shopping.py").write_text(program_of(text))
    laptop = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"} | {
        "TARTLET_RUN_DIR": str(tmp_path / "elsewhere"),
        "TARTLET_CACHE_DIR": str(tmp_path / "no-component"),
        "PYTHONPATH": str(without_engine(tmp_path / "no-engine")),
    }
    for module in ("torch", "tartlet_worker", "tartlet_control"):
        asked = [sys.executable, "-c", f"import {module}"]
        assert subprocess.run(asked, env=laptop, capture_output=True, check=False).returncode == 1

    def on_the_cluster(command: list[str], directory: Path, env: Mapping[str, str]) -> subprocess.Popen[str]:
        return editor.start(command, directory, stdin=subprocess.PIPE, stderr=subprocess.STDOUT)

    for each in sessions(text):
        if "--fork" in each.command or each.command.startswith("tartlet test "):
            break  # engines and other versions of the program are the machine's own affair
        command = each.command
        if "export RUN" in command:
            code, out, err = editor.tartlet("ps", "--kube", "--all", "--json")
            assert code == 0, err
            (failed,) = [p for p in map(json.loads, out.splitlines()) if p["name"].startswith("shopping")]
            each.command = command.replace("RUN", failed["program_id"][:8])
        with step(command):
            if "--kube" in command:
                assert shown_by(each, tmp_path, {}, on_the_cluster) == each.shown, command
            else:
                assert shown_by(each, tmp_path, laptop) == each.shown, command
    else:
        pytest.fail("the page's session on the cluster has no end")
