"""Examples of the documents that want a server run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tartlet_common.errors import exit_codes
from tests.e2e.serving import Serving, environment, tartlet_cli


def test_the_guide_s_client_runs(server: Serving, repo: Path, tmp_path: Path) -> None:
    guide = (repo / "docs/guide.md").read_text()
    [example] = re.findall(r"^```py\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)
    programs = re.findall(r"^```python\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)
    [talk] = [text for text in programs if "what is your name?" in text]
    (tmp_path / "talk.py").write_text(talk)
    ran = subprocess.run(
        [sys.executable, "-c", example],
        cwd=tmp_path,
        env=environment(server.run_dir),
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "what is your name?\nhello, Ada\n"


def test_the_journal_of_a_failure_replays_as_operations_shows(server: Serving, repo: Path, tmp_path: Path) -> None:
    text = (repo / "docs/operations.md").read_text()
    [example] = re.findall(r"^```py\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    program = tmp_path / "fails.py"
    program.write_text("print('so far')\nraise ValueError('so good')\n")
    before = set(server.run_dir.rglob("*.journal"))
    assert tartlet_cli(server.run_dir, "run", "--server", "local", str(program)).returncode == exit_codes.PROGRAM_FAILED
    [journal] = set(server.run_dir.rglob("*.journal")) - before
    replayed = subprocess.run(
        [sys.executable, "-c", example, str(journal)],
        env=environment(server.run_dir),
        capture_output=True,
        text=True,
        check=True,
    )
    assert replayed.stdout.startswith("True "), replayed.stdout
    assert "ValueError: so good" in replayed.stdout
