"""Roles never import modules from the user's directory, which would run outside the sandbox."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

NAMES = ("uvloop", "jinja2", "token", "random", "numpy", "bench", "encodings")


@pytest.mark.parametrize("native", [False, True])
def test_modules_in_the_current_directory_do_not_run_in_a_role(tmp_path: Path, run_dir: Path, native: bool) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for name in NAMES:
        (here / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('{name}')\n")
    program = tmp_path / "program.py"
    program.write_text("async def main():\n    print('hello')\n")
    command = [sys.executable, "-P", "-m", "tartlet_cli", "run", "--engine", "fake", *(["--native"] if native else [])]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [*command, str(program)],
        cwd=here,
        env={**environment, "TARTLET_RUN_DIR": str(run_dir)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "hello" in done.stdout
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()
