"""How far a start is, as a terminal shows it: one line, gone at the end, that nothing else is written into."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from tartlet_cli.commands.doctor import machine
from tests.e2e.serving import PROGRAMS, command, environment

WIPE = "\r\x1b[2K"


def on_terminal(run_dir: Path, *args: str, until: Callable[[str], bool]) -> tuple[str, str]:
    """Standard output, through a pipe, and standard error, on a terminal, of a command that ends when `until` says."""
    ours, theirs = pty.openpty()
    env = environment(run_dir, TERM="xterm")
    process = subprocess.Popen(command(*args), env=env, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    shown, asked = b"", False
    with contextlib.suppress(OSError):  # EIO: nobody holds the other side any more
        while data := os.read(ours, 4096):
            shown += data
            if not asked and until(shown.decode()):
                process.terminate()
                asked = True
    os.close(ours)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    return out.decode(), shown.decode().replace("\r\n", "\n")


def screen(shown: str) -> list[str]:
    """The lines that are there in the end."""
    return [line.rpartition(WIPE)[2] for line in shown.split("\n")]


def test_a_run_shows_how_far_its_start_is_and_wipes_that(run_dir: Path) -> None:
    args = ("run", "--engine", "fake", str(PROGRAMS / "sampled.py"), "hello", "0", "0", "1", "1")
    out, shown = on_terminal(run_dir, *args, until=lambda _: False)
    told = [part for part in shown.split(WIPE) if part.startswith("starting: ")]
    assert told[0] == "starting: waiting for control, runtime and worker"
    assert any("worker (warming up)" in line for line in told)
    assert all(len(later) <= len(sooner) for sooner, later in pairwise(line.split(" (")[0] for line in told))
    closing, rest = screen(shown)
    assert closing.startswith("[24 tokens, ")
    assert rest == ""
    assert "worker" not in out


def test_a_servers_log_lines_stand_above_the_line_of_progress(run_dir: Path) -> None:
    _, shown = on_terminal(run_dir, "serve", "--engine", "fake", until=lambda text: "(Ctrl-C ends it" in text)
    assert "worker: warming up" in shown
    starts = r"(control|runtime|worker|gateway) serves \(pid|serving at|OpenAI API at|no HTTP API"
    whole = re.compile(rf"{starts}|20\d\d-\d\d-\d\d |$")
    assert [line for line in screen(shown) if not whole.match(line)] == []


def test_a_pipe_gets_none_of_it(run_dir: Path) -> None:
    args = command("run", "--engine", "fake", "--quiet", str(PROGRAMS / "sampled.py"), "hello", "0", "0", "1", "1")
    done = subprocess.run(args, env=environment(run_dir), capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_doctor_says_what_it_waits_for_before_it_is_known() -> None:
    said: list[str] = []
    before = {check.name: len(said) for check in machine(said.append)}
    assert before["python"] == before["disk, run"] == 0, "nothing slow comes before these"
    assert before["fast path"] == 1, "a worker is asked"
    assert "kernels" in said[0]
