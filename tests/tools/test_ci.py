"""The order and the verdict of `.ci/run`, with programs that note their arguments instead of doing anything."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

README = """# It

<!-- ci -->

    not this one

```bash
make demo
make test   # all of it
```
"""


TURN = '[ "$3" != turn ] || exec "${@:4}"\n'
"""What `python -m e2e.cluster turn COMMAND...` does once it has the cluster."""


@pytest.fixture
def place(tmp_path: Path, repo: Path) -> Path:
    """A repository with `.ci/run`, a README, and a `python` and a `make` that run `python.sh` and `make.sh`, if any."""
    for folder in (".ci", "tools", ".venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    for name in (".ci/run", "tools/stage.sh"):
        shutil.copy(repo / name, tmp_path / name)
    (tmp_path / "README.md").write_text(README)
    for name in ("python", "make"):
        program = tmp_path / ".venv" / "bin" / name
        program.write_text(f'#!/bin/bash\necho "{name} $*" >> asked\n[ ! -e {name}.sh ] || . ./{name}.sh\n{TURN}')
        program.chmod(0o755)
    return tmp_path


def start(place: Path, **more: str) -> subprocess.Popen[str]:
    """Starts `.ci/run` in another directory."""
    env = {"PATH": os.environ["PATH"], **more}
    return subprocess.Popen(
        [place / ".ci" / "run"], cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
    )


def asked(place: Path) -> list[str]:
    return (place / "asked").read_text().replace(str(place), "PLACE").splitlines()


def test_the_cluster_is_tested_before_the_check_which_ends_it(place: Path) -> None:
    (place / "make.sh").write_text('[ "$1" != check ] || echo "== 3 passed in 1 s =="\n')
    process = start(place)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 0, said
    assert asked(place) == [
        *("make setup", "make demo"),
        *("python -m e2e.cluster check", "python -m e2e.cluster build"),
        *("python -m e2e.cluster turn PLACE/.ci/run cluster-tests", "make e2e", "make check"),
    ]
    assert said.splitlines()[-1] == "== 3 passed in 1 s =="
    assert "== e2e: 0 s, ok" in said


def test_where_no_cluster_can_be_had_it_says_why_and_fails_after_the_check(place: Path) -> None:
    (place / "python.sh").write_text('echo "no root here"; exit 3\n')
    process = start(place)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 3
    assert "== e2e: not run: no root here\n" in said
    assert asked(place)[-2:] == ["python -m e2e.cluster check", "make check"]


def test_a_machine_without_a_cluster_passes_where_that_is_allowed(place: Path) -> None:
    (place / "python.sh").write_text('echo "no root here"; exit 3\n')
    process = start(place, TARTLET_CI_CLUSTER="optional")
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert asked(place)[-1] == "make check"


@pytest.mark.parametrize("allowed", ["", "optional"])
@pytest.mark.parametrize(
    ("program", "script", "last"),
    [
        ("make", '[ "$1" != setup ] || exit 7', "make setup"),
        ("python", '[ "$3" != check ] || exit 7', "make check"),
        ("python", '[ "$3" != build ] || exit 7', "make check"),
        ("make", '[ "$1" != e2e ] || exit 7', "make check"),
        ("make", '[ "$1" != check ] || exit 7', "make check"),
    ],
)
def test_a_stage_that_fails_fails_ci(place: Path, program: str, script: str, last: str, allowed: str) -> None:
    (place / f"{program}.sh").write_text(f"{script}\n")
    process = start(place, TARTLET_CI_CLUSTER=allowed)
    process.communicate(timeout=60)
    assert process.returncode == 7
    assert asked(place)[-1] == last


def test_a_broken_test_on_a_cluster_fails_ci_and_the_cluster_is_brought_down(place: Path, repo: Path) -> None:
    (place / "test_broken.py").write_text("def test_it(): raise AssertionError\n")
    runner = (
        f"import sys; sys.path.insert(0, {str(repo)!r}); "
        "from tools.testing.exceptions import Exceptions; from tools.testing.runs import Part, Runner; "
        f"sys.exit(Runner().run([Part('it', ('-c', '/dev/null', '{place}/test_broken.py'))], Exceptions()))"
    )
    (place / "make.sh").write_text(f'[ "$1" != e2e ] || exec {sys.executable} -c "{runner}"\n')
    process = start(place)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 1
    assert said.count("1 failed in") == 2  # the second time alone
    assert "== e2e: " in said
    assert asked(place)[-3:] == ["make e2e", "python -m e2e.cluster down", "make check"]


def test_too_slow_tests_on_a_cluster_are_ended_and_tidied_up(place: Path) -> None:
    run = place / ".ci" / "run"
    run.write_text(run.read_text().replace("CLUSTER_S=1500", "CLUSTER_S=1"))
    (place / "make.sh").write_text(
        'trap "echo tidied >> asked; exit 130" TERM; [ "$1" != e2e ] || { sleep 60 & wait; }\n'
    )
    process = start(place)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 124
    assert "out of time: not done within 1 s: make e2e" in said
    assert asked(place)[-4:] == ["make e2e", "tidied", "python -m e2e.cluster down", "make check"]


def test_a_signal_ends_the_command_that_runs(place: Path) -> None:
    (place / "make.sh").write_text(
        'trap "echo tidied >> asked; exit 130" TERM; [ "$1" != e2e ] || { sleep 60 & wait; }\n'
    )
    process = start(place)
    end = time.monotonic() + 30
    while not (place / "asked").exists() or "make e2e" not in asked(place):
        assert time.monotonic() < end
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert asked(place)[-1] == "tidied"


def test_the_wait_for_another_run_is_no_part_of_the_tests_time(place: Path) -> None:
    run = place / ".ci" / "run"
    run.write_text(run.read_text().replace("CLUSTER_S=1500", "CLUSTER_S=1"))
    (place / "python.sh").write_text('[ "$3" != turn ] || sleep 1.5\n')
    process = start(place)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 0, said
    assert "out of time" not in said
