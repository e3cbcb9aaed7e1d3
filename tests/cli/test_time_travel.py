"""The sessions of docs/time-travel.md run as they stand: recorded with a server, stepped through without one."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tartlet_runtime.journal.records import Kind, read_journal
from tests.e2e.serving import environment

PAGE = Path(__file__).parents[2] / "docs" / "time-travel.md"
PROMPT = "(Pdb) "
NO_ENGINE = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "tartlet_worker", "tartlet_control"):
            raise ImportError(f"{name} is not on this machine")
sys.meta_path.insert(0, Blocked())
"""


@dataclass
class Step:
    """One command of a session, with what it is told and what it shows."""

    command: str
    shown: list[str] = field(default_factory=list)

    @property
    def typed(self) -> str:
        return "".join(f"{line.removeprefix(PROMPT)}\n" for line in self.shown if line.startswith(PROMPT))


def sessions(text: str) -> list[Step]:
    steps: list[Step] = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            if line.startswith("$ "):
                steps.append(Step(line[2:]))
            else:
                steps[-1].shown.append(line)
    return steps


def shown_by(step: Step, directory: Path, env: dict[str, str]) -> list[str]:
    command = re.sub(r"\btartlet ", f"{shlex.quote(sys.executable)} -m tartlet_cli ", step.command)
    ran = subprocess.run(
        ["sh", "-c", command], cwd=directory, env=env, input=step.typed, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=120, check=False,
    )  # fmt: skip
    first, *rest = ran.stdout.split(PROMPT)
    typed = step.typed.splitlines()
    assert len(rest) == len(typed), ran.stdout
    echoed = first + "".join(f"{PROMPT}{said}\n{then}" for said, then in zip(typed, rest, strict=True))
    told = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "RUN", echoed.replace(f"{directory}/", ""))
    told = re.sub(r"\(ticket \d+\)", "(ticket T)", re.sub(r"\d+ deliveries", "N deliveries", told))
    return [line for line in told.splitlines() if not line.startswith(("replayed ", "journal of "))]


@pytest.mark.timeout(300)
def test_the_sessions_run_as_they_stand(run_dir: Path, tmp_path: Path) -> None:
    text = PAGE.read_text()
    [program] = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for name, changed in {
        "": program,
        "fixed": program.replace("len(wishes)", "max(1, len(wishes))"),
        "changed": program.replace("Which of them do you want?", "Which one?"),
    }.items():
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "shopping.py").write_text(changed)
    (tmp_path / "no-engine").mkdir()
    (tmp_path / "no-engine" / "sitecustomize.py").write_text(NO_ENGINE)
    server = environment(run_dir)
    laptop = {
        **os.environ,
        "TARTLET_RUN_DIR": str(tmp_path / "elsewhere"),
        "TARTLET_CACHE_DIR": str(tmp_path / "no-component"),
        "PYTHONPATH": str(tmp_path / "no-engine"),
    }
    steps = sessions(text)
    assert [step.command.split()[0] for step in steps] == ["echo", *["tartlet"] * (len(steps) - 1)]
    for step in steps:
        if step.command.startswith("tartlet journals export"):
            [journal] = (run_dir / "journals").glob("*.journal")
            step.command = step.command.replace("RUN", journal.stem[:8])
        if "--fork N" in step.command:
            records = read_journal(tmp_path / "failed.journal")[1]
            total = sum(record.kind == Kind.DELIVERY for record in records)
            step.command = step.command.replace("--fork N", f"--fork {total}")
        env = laptop if "--native" in step.command else server
        assert shown_by(step, tmp_path, env) == step.shown, step.command
