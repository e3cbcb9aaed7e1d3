"""The sessions of docs/time-travel.md run as they stand: recorded with a server, stepped through without one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tartlet_runtime.journal.records import Kind, read_journal
from tests.cli.sessions import program_of, sessions, shown_by, without_engine
from tests.e2e.serving import environment

PAGE = Path(__file__).parents[2] / "docs" / "time-travel.md"


def here(command: str) -> str:
    """Returns a command of the page for this machine instead of a cluster."""
    return command.replace(" --kube --model demo", " --engine fake").removesuffix(" --kube")


@pytest.mark.timeout(300)
def test_the_sessions_run_as_they_stand(run_dir: Path, tmp_path: Path) -> None:
    """The part on a cluster runs here without one: `e2e/tests/programs/test_time_travel.py` runs it there."""
    text = PAGE.read_text()
    program = program_of(text)
    for name, changed in {
        "": program,
        "fixed": program.replace("len(wishes)", "max(1, len(wishes))"),
        "changed": program.replace("Which of them do you want?", "Which one?"),
    }.items():
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "shopping.py").write_text(changed)
    server = environment(run_dir)
    laptop = {
        **os.environ,
        "TARTLET_RUN_DIR": str(tmp_path / "elsewhere"),
        "TARTLET_CACHE_DIR": str(tmp_path / "no-component"),
        "PYTHONPATH": str(without_engine(tmp_path / "no-engine")),
    }
    steps = [step for step in sessions(text) if not step.command.startswith("tartlet ps --kube")]
    assert [step.command.split()[0] for step in steps] == ["echo", *["tartlet"] * (len(steps) - 1)]
    for step in steps:
        command = step.command = here(step.command)
        if command.startswith("tartlet journals export"):
            [journal] = (run_dir / "journals").glob("*.journal")
            step.command = command.replace("RUN", journal.stem[:8])
        if "--fork N" in command:
            records = read_journal(tmp_path / "failed.journal")[1]
            total = sum(record.kind == Kind.DELIVERY for record in records)
            step.command = command.replace("--fork N", f"--fork {total}")
        elsewhere = "--native" in command or command.startswith(("tartlet journals import", "tartlet journals list"))
        assert shown_by(step, tmp_path, laptop if elsewhere else server) == step.shown, command
