"""Commands in an installation's notes can be copied."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.render import CHART, EVERYTHING, KUBERNETES, run


def notes(values: dict[str, Any], directory: Path) -> str:
    """Return the notes. `helm template` omits them, so a copy of the chart renders them as an object."""
    copy = shutil.copytree(CHART, directory / "chart")
    file = copy / "templates" / "NOTES.txt"
    text = '{{ define "notes" }}' + file.read_text() + '{{ end }}\nnotes: {{ include "notes" . | toJson }}\n'
    (copy / "templates" / "notes.yaml").write_text(text)
    file.unlink()
    done = run("template", "t", str(copy), "-n", "prod", "-s", "templates/notes.yaml", *KUBERNETES, values=values)
    assert done.returncode == 0, done.stderr
    return str(yaml.safe_load(done.stdout)["notes"])


@pytest.mark.parametrize(
    "values", [{}, {**EVERYTHING, "enginePools": []}, {"crds": {"keep": False}}], ids=["defaults", "pools", "crds"]
)
def test_every_line_to_copy_from_the_notes_is_one_command(values: dict[str, Any], tmp_path: Path) -> None:
    said = notes(values, tmp_path).splitlines()
    copied = [line for line in said if line.startswith("  ")]
    assert any("tartlet run --kube -n prod" in line for line in copied)
    assert any("helm -n prod test t" in line for line in copied)
    for line in copied:
        done = subprocess.run(["bash", "-n", "-c", line], capture_output=True, text=True, timeout=10, check=False)
        assert (done.returncode, done.stderr) == (0, ""), line
        words = shlex.split(line, comments=True)  # prose after a command would be its arguments
        assert not words or words[0] in {"kubectl", "helm", "tartlet", "curl"}, line
        assert not {"before", "after", "it"} & set(words), line
    assert not [line for line in said if not line.startswith("  ") and "kubectl -n" in line]


def test_the_notes_hold_for_a_later_helm_test_too(tmp_path: Path) -> None:
    """`helm test` shows the notes again, when pools may have been applied by hand."""
    said = notes({"enginePools": []}, tmp_path)
    assert "Unless there is one, apply an EnginePool" in said
    assert "no engines yet" not in said
    assert "is being started" not in said


def test_what_an_uninstall_leaves_is_said(tmp_path: Path) -> None:
    said = notes({"fullnameOverride": "pie"}, tmp_path / "chart")
    assert "the pod pie-test of a `helm test` that failed." in said
    assert "cert-manager made" not in said
    given = {"crds": {"keep": False}, "certificates": {"provider": "certManager"}}
    assert "and the Secrets that cert-manager made." in notes(given, tmp_path / "other")


def test_whose_images_are_in_no_registry_is_said(tmp_path: Path) -> None:
    mine = {"repository": "registry.example.org/tartlet", "tag": "v1"}
    said = notes({"image": mine}, tmp_path / "one")
    assert "Image tartlet-worker:v1 is in no registry" in said
    assert "Image registry.example.org" not in said
    assert "in no registry" not in notes({"image": mine, "workerImage": mine}, tmp_path / "both")


def test_a_release_that_does_not_watch_its_own_namespace_says_so(tmp_path: Path) -> None:
    said = notes({"operator": {"namespaces": ["team-a"]}}, tmp_path / "without")
    assert "WARNING: operator.namespaces leaves prod out" in said
    assert "kubectl -n prod wait" not in said, "nobody would see to those pools"
    assert "WARNING" not in notes({"operator": {"namespaces": ["team-a", "prod"]}}, tmp_path / "with")
