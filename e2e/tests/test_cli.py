"""The command line on a cluster, by somebody who may do no more than a release's editor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.cluster.kube import Kube, step, until
from e2e.cluster.layout import ROOT
from e2e.cluster.provider import Own
from e2e.tests.conftest import NAMESPACE, RELEASE
from e2e.tests.test_answers import run

COMPLETION = "inferlets/std/text_completion.py"
QUESTION = ("--prompt", "374+588=", "--max-tokens", "64")
WAITING = "import inferlet\nasync def main():\n    inferlet.send('begun\\n')\n    await inferlet.receive()\n"


@dataclass
class Person:
    """A service account of the namespace, with one role of the release, at a terminal."""

    kube: Kube
    name: str
    directory: Path

    def may(self, role: str) -> None:
        """Give the account its role, and write its configuration."""
        kube = self.kube
        kube("create", "serviceaccount", self.name)
        full = f"tartlet:{NAMESPACE}:{RELEASE}:{role}"
        kube("create", "rolebinding", self.name, f"--clusterrole={full}", f"--serviceaccount={NAMESPACE}:{self.name}")
        config = json.loads(kube("config", "view", "--raw", "--minify", "--flatten", "-o", "json"))
        config["users"] = [{"name": self.name, "user": {"token": kube("create", "token", self.name).strip()}}]
        context = config["contexts"][0]
        context["context"] |= {"user": self.name, "namespace": NAMESPACE}
        config["current-context"] = context["name"]
        self.config.write_text(json.dumps(config))

    @property
    def config(self) -> Path:
        """A file of kubectl's."""
        return self.directory / "config"

    def start(self, command: Sequence[str]) -> subprocess.Popen[str]:
        """A command in the cluster's network; `tartlet` and its plugin are found as in an activated environment."""
        cluster = self.kube.cluster
        inside = cluster.enter("net") if isinstance(cluster, Own) else []
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        env = {
            **os.environ,
            "PATH": path,
            "KUBECONFIG": str(self.config),
            "TARTLET_RUN_DIR": str(self.directory / "run"),
        }
        return subprocess.Popen(
            [*inside, *command], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )

    def tartlet(self, *arguments: str) -> tuple[int, str, str]:
        """`tartlet` to its end: exit code, output, errors."""
        return _end(self.start(["tartlet", *arguments]))

    def kubectl(self, *arguments: str) -> tuple[int, str, str]:
        """kubectl to its end, with its plugins."""
        found = [a for a in self.kube.cluster.kubectl() if not a.startswith("--kubeconfig")]
        inside = found.index("--") + 1 if "--" in found else 0
        return _end(self.start([*found[inside:], *arguments]))


def _end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def person(kube: Kube, role: str, directory: Path) -> Iterator[Person]:
    """Somebody with a role, until the end of the module."""
    made = Person(kube, f"cli-{role}", directory)
    made.may(role)
    yield made
    kube("delete", f"serviceaccount/{made.name}", f"rolebinding/{made.name}")


@pytest.fixture(scope="module")
def editor(kube: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """An editor."""
    yield from person(kube, "editor", tmp_path_factory.mktemp("editor"))


@pytest.fixture(scope="module")
def viewer(kube: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """A viewer."""
    yield from person(kube, "viewer", tmp_path_factory.mktemp("viewer"))


def test_an_editor_runs_a_program_and_reads_its_output_as_it_comes(editor: Person, demo_pool: str) -> None:
    with step("tartlet run --kube"):
        code, out, err = editor.tartlet("run", "--kube", "--model", demo_pool, COMPLETION, *QUESTION)
    assert code == 0, err
    assert "962" in out
    assert err.startswith("[33 tokens, first after ") or " tokens, first after " in err
    assert list((editor.directory / "run").iterdir()) == []


def test_an_editor_applies_a_program_and_follows_a_run_of_it(editor: Person, kube: Kube, demo_pool: str) -> None:
    with step("tartlet apply --wait"):
        arguments = [f"--arg={argument}" for argument in QUESTION]
        applied = editor.tartlet("apply", COMPLETION, "--pool", demo_pool, "--name", "cli-adds", *arguments, "--wait")
    assert applied[:2] == (0, "inferlet.tartlet.dev/cli-adds created\ninferlet.tartlet.dev/cli-adds ready\n"), applied
    kube.apply(run("cli-adds-1", "cli-adds"))
    with step("kubectl tartlet logs -f"):
        code, out, err = editor.kubectl("tartlet", "logs", "-f", "cli-adds-1")
    assert (code, "962" in out) == (0, True), err
    kube.wait("irun/cli-adds-1", "Succeeded")
    assert "962" in editor.kubectl("tartlet", "logs", "cli-adds-1")[1]
    code, out, err = editor.kubectl("tartlet", "status")
    assert code == 0, err
    lines = [line.split() for line in out.splitlines()]
    assert [RELEASE, "1", "ready"] in [line[:3] for line in lines]
    assert [demo_pool, "demo", "1/1"] in [line[:3] for line in lines]
    assert ["cli-adds", "demo", "True", "True"] in [line[:4] for line in lines]
    assert ["cli-adds-1", "cli-adds", "Succeeded"] in [line[:3] for line in lines]
    again = editor.tartlet("run", "--kube", "--inferlet", "cli-adds", *QUESTION)
    assert (again[0], "962" in again[1]) == (0, True), again


def test_ctrl_c_ends_the_program_on_the_cluster(editor: Person, fake_pool: str, tmp_path: Path) -> None:
    file = tmp_path / "waiting.py"
    file.write_text(WAITING)

    def running() -> list[str]:
        code, out, err = editor.kubectl("tartlet", "top", "--once", "--json")
        assert code == 0, err
        return [p["name"] for p in json.loads(out)["programs"] if p["name"] == file.name or "waiting" in p["name"]]

    with editor.start(["tartlet", "run", "--kube", str(file)]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n", process.communicate()[1]
        assert len(running()) == 1
        process.send_signal(signal.SIGINT)
        code, _, err = _end(process)
    assert code == 130, err
    until(lambda: running() == [], "the program has ended", 20)


def test_a_viewer_sees_and_is_told_why_nothing_runs(viewer: Person, editor: Person, fake_pool: str) -> None:
    code, out, err = viewer.kubectl("tartlet", "status")
    assert (code, fake_pool in out) == (0, True), err
    code, out, err = viewer.tartlet("run", "--kube", COMPLETION, *QUESTION)
    assert (code, out, err.split(":")[0]) == (2, "", "Forbidden")
    code, out, err = viewer.tartlet("apply", COMPLETION, "--name", "cli-forbidden")
    assert (code, err.split(":")[0]) == (2, "Forbidden")
    code, out, err = editor.tartlet("crds", "apply", "--dry-run")
    assert (code, err.split(":")[0]) == (2, "Forbidden")


def test_the_kinds_that_a_release_brought_are_as_the_command_lines(editor: Person, kube: Kube, tmp_path: Path) -> None:
    config = tmp_path / "administrator"
    config.write_text(kube("config", "view", "--raw", "--flatten", "-o", "json"))
    code, out, err = editor.tartlet("crds", "apply", "--dry-run", "--kubeconfig", str(config))
    assert code == 0, err
    assert [line.split()[1:] for line in out.splitlines()] == [["unchanged", "(dry", "run)"]] * 3
