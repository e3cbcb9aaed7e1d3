"""The command line on a cluster, used with no more rights than a release's editor has."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.kube import Kube, step, until
from e2e.tests.conftest import RELEASE
from e2e.tests.programs.test_answers import run
from e2e.tests.support.person import Person, end, person
from e2e.tests.support.story import inferlet

COMPLETION = "inferlets/std/text_completion.py"
QUESTION = ("--prompt", "374+588=", "--max-tokens", "64")
FAILS = (
    "async def main():\n    def deeper():\n        raise ValueError('on purpose')\n    print('so far')\n    deeper()\n"
)
WAITING = "import inferlet\nasync def main():\n    inferlet.send('begun\\n')\n    await inferlet.receive()\n"


@pytest.fixture(scope="module")
def editor(kube: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """A person with the release's editor role."""
    yield from person(kube, "editor", tmp_path_factory.mktemp("editor"))


@pytest.fixture(scope="module")
def viewer(kube: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """A person with the release's viewer role."""
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


def test_the_plugin_runs_shows_and_tells_why_a_program_failed(
    editor: Person, kube: Kube, demo_pool: str, tmp_path: Path
) -> None:
    with step("kubectl tartlet run"):
        code, out, err = editor.kubectl("tartlet", "run", "--model", demo_pool, COMPLETION, *QUESTION)
    assert (code, "962" in out) == (0, True), err
    file = tmp_path / "fails.py"
    file.write_text(FAILS)
    code, out, err = editor.kubectl("tartlet", "run", str(file))
    assert (code, out) == (1, "so far\n")
    assert ("line 3, in deeper" in err, "\nValueError: on purpose\n" in err) == (True, True), err

    kube.apply(inferlet("cli-fails", demo_pool, {"inline": FAILS}), run("cli-fails-1", "cli-fails"))
    kube.wait("irun/cli-fails-1", "Failed")
    for command, expected in (("logs", (0, "so far\n")), ("logs -f", (1, "so far\n")), ("wait", (1, ""))):
        assert editor.kubectl("tartlet", *command.split(), "cli-fails-1")[:2] == expected, command
    code, out, err = editor.kubectl("tartlet", "logs", "cli-fails-1")
    assert ("line 3, in deeper" in err, err.strip().endswith("ValueError: on purpose")) == (True, True), err
    assert editor.kubectl("tartlet", "logs", "cli-unknown")[0] == 2
    code, out, err = editor.kubectl("tartlet", "status", "--json")
    assert code == 0, err
    (listed,) = [r for r in json.loads(out)["runs"] if r["metadata"]["name"] == "cli-fails-1"]
    assert listed["status"]["error"]["name"] == "ProgramFailed"

    kube.apply(inferlet("cli-waits", demo_pool, {"inline": WAITING}), run("cli-waits-1", "cli-waits"))
    kube.wait("irun/cli-waits-1", "Running")
    code, out, err = editor.kubectl("tartlet", "top", "--once")
    assert code == 0, err
    lines = [line.split() for line in out.splitlines()]
    assert [demo_pool, "ready"] in [line[1:3] for line in lines if len(line) > 2], out
    assert ["cli-waits"] in [line[1:2] for line in lines], out
    kube("delete", "irun/cli-waits-1")
    until(lambda: editor.running("cli-waits") == [], "the program has ended", 20)


def test_ctrl_c_ends_the_program_on_the_cluster(editor: Person, fake_pool: str, tmp_path: Path) -> None:
    file = tmp_path / "waiting.py"
    file.write_text(WAITING)

    with editor.start(["tartlet", "run", "--kube", str(file)]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n", process.communicate()[1]
        assert len(editor.running("waiting")) == 1
        process.send_signal(signal.SIGINT)
        code, _, err = end(process)
    assert code == 130, err
    until(lambda: editor.running("waiting") == [], "the program has ended", 20)


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
