"""Runs the console sessions of a page as they stand, and shows what they print in the page's form."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PROMPT: Final = "(Pdb) "
_NO_ENGINE: Final = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "tartlet_worker", "tartlet_control"):
            raise ImportError(f"{name} is not on this machine")
sys.meta_path.insert(0, Blocked())
"""

Start = Callable[[list[str], Path, Mapping[str, str]], "subprocess.Popen[str]"]
"""Starts a command in a directory with an environment, with pipes to its standard input and from its outputs."""


@dataclass
class Step:
    """One command of a session, with what it is told and what it shows."""

    command: str
    shown: list[str] = field(default_factory=list)

    @property
    def typed(self) -> str:
        return "".join(f"{line.removeprefix(PROMPT)}\n" for line in self.shown if line.startswith(PROMPT))


def sessions(text: str) -> list[Step]:
    """Returns the commands of a page's console blocks."""
    steps: list[Step] = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            if line.startswith("$ "):
                steps.append(Step(line[2:]))
            else:
                steps[-1].shown.append(line)
    return steps


def program_of(text: str) -> str:
    """Returns the program of a page that has one."""
    [program] = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return str(program)


def without_engine(directory: Path) -> Path:
    """Makes a folder for PYTHONPATH with which torch, the worker and control can't be imported; returns it."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(_NO_ENGINE)
    return directory


def start(command: list[str], directory: Path, env: Mapping[str, str]) -> subprocess.Popen[str]:
    """Starts a command on this machine."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=directory, env=env, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True
    )


def shown_by(step: Step, directory: Path, env: Mapping[str, str], begin: Start = start) -> list[str]:
    """Runs a step, and returns what it shows, with the page's words for what differs each time."""
    command = re.sub(r"\btartlet ", f"{shlex.quote(sys.executable)} -m tartlet_cli ", step.command)
    with begin(["sh", "-c", command], directory, env) as process:
        try:
            out, _ = process.communicate(step.typed, timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    first, *rest = out.split(PROMPT)
    typed = step.typed.splitlines()
    assert len(rest) == len(typed), out
    echoed = first + "".join(f"{PROMPT}{said}\n{then}" for said, then in zip(typed, rest, strict=True))
    told = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "RUN", echoed.replace(f"{directory}/", ""))
    told = re.sub(r"\(ticket \d+\)", "(ticket T)", re.sub(r"\d+ deliveries", "N deliveries", told))
    told = re.sub(r"^(RUN .*?) \d+s .*?(\d+ +0 +demo)", r"\1 AGE \2", told, flags=re.MULTILINE)
    told = re.sub(
        r"^RUN .*", lambda line: re.sub(" {2,}| (?=AGE)|(?<=AGE) ", "  ", line.group()), told, flags=re.MULTILINE
    )
    return [line for line in told.splitlines() if not line.startswith(("replayed ", "journal of "))]
