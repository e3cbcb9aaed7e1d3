"""What `.ci/run` does, with programs that note what they are asked instead of doing it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
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


@pytest.fixture
def place(tmp_path: Path, repo: Path) -> Path:
    """A repository with `.ci/run` and a README; `python` and `make` do as the test's files of their names say."""
    for folder in (".ci", "tools", ".venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    for name in (".ci/run", "tools/stage.sh"):
        shutil.copy(repo / name, tmp_path / name)
    (tmp_path / "README.md").write_text(README)
    for name in ("python", "make"):
        program = tmp_path / ".venv" / "bin" / name
        program.write_text(f'#!/bin/bash\necho "{name} $*" >> asked\n[ ! -e {name}.sh ] || . ./{name}.sh\n')
        program.chmod(0o755)
    return tmp_path


def start(place: Path, **more: str) -> subprocess.Popen[str]:
    """`.ci/run`, from elsewhere."""
    env = environment() | more
    return subprocess.Popen(
        [place / ".ci" / "run"], cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
    )


def environment() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "TARTLET_CI_E2E_MUST_PASS": "1"}


def asked(place: Path) -> list[str]:
    return (place / "asked").read_text().splitlines()


def test_the_cluster_is_tested_before_the_check_which_ends_it(place: Path) -> None:
    (place / "make.sh").write_text('[ "$1" != check ] || echo "== 3 passed in 1 s =="\n')
    process = start(place)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 0, said
    assert asked(place) == [
        *("make setup", "make demo"),
        *("python -m e2e.cluster check", "python -m e2e.cluster build", "make e2e", "make check"),
    ]
    assert said.splitlines()[-1] == "== 3 passed in 1 s =="
    assert "== e2e: 0 s, ok" in said


def test_where_no_cluster_can_be_had_it_says_why_and_goes_on(place: Path) -> None:
    (place / "python.sh").write_text('echo "no root here"; exit 3\n')
    process = start(place)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 0
    assert "== e2e: not run: no root here\n" in said
    assert asked(place)[-2:] == ["python -m e2e.cluster check", "make check"]


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
def test_any_other_failure_is_its_own(place: Path, program: str, script: str, last: str) -> None:
    (place / f"{program}.sh").write_text(f"{script}\n")
    process = start(place)
    process.communicate(timeout=60)
    assert process.returncode == 7
    assert asked(place)[-1] == last


def test_a_failure_on_a_cluster_is_told_and_need_not_fail_all(place: Path) -> None:
    (place / "make.sh").write_text('[ "$1" != e2e ] || exit 7\n')
    process = start(place, TARTLET_CI_E2E_MUST_PASS="")
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 0
    assert "failed with status 7" in said
    assert asked(place)[-3:] == ["make e2e", "python -m e2e.cluster down", "make check"]


def test_too_slow_tests_on_a_cluster_are_ended_and_tidied_up(place: Path) -> None:
    run = place / ".ci" / "run"
    run.write_text(run.read_text().replace("CLUSTER_S=1130", "CLUSTER_S=1"))
    (place / "make.sh").write_text(
        'trap "echo tidied >> asked; exit 130" TERM; [ "$1" != e2e ] || { sleep 60 & wait; }\n'
    )
    process = start(place)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 124
    assert "out of time: not done within 1 s: make e2e" in said
    assert asked(place)[-4:] == ["make e2e", "tidied", "python -m e2e.cluster down", "make check"]


def test_who_ends_it_ends_what_it_runs(place: Path) -> None:
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
