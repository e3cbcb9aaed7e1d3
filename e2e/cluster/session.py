"""One run of the tests, from a cluster that may not be there to one that is gone again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO

from e2e.cluster.artifacts import toolchain
from e2e.cluster.layout import ROOT
from e2e.cluster.own.cluster import deaf, stage
from e2e.cluster.provider import Cluster, Own

TESTS = "e2e/tests"
API_TESTS = ("tests/operator",)
"""Of these, the modules that want an API server; they come first: it and a cluster would be in each other's way."""

BESIDE_TESTS = (("tests/chart", "tests.chart.render"), ("tests/cli", "api_server"))
"""Folders, and the word that is in those of their modules that are skipped elsewhere, for want of Helm or a server."""

_TEST_S = 300
_END_S = 60.0
_NOTHING_COLLECTED = 5
_BESIDE = ("nice", "-n", "10")


def commands(arguments: Sequence[str]) -> list[list[str]]:
    """pytest, on the tests that the arguments name, else on all.

    All but the first command are for beside it, in what it leaves of the processors: what they test watches no clocks,
    and what it tests often waits.
    """
    named = [a for a in arguments if (ROOT / a.partition("::")[0]).exists() and not a.startswith("-")]
    if named:
        return [_command(arguments)]
    beside = [*_BESIDE, *_command([*beside_tests(), *arguments])]
    return [_command([*api_tests(), TESTS, *arguments]), beside]


def _command(arguments: Sequence[str]) -> list[str]:
    # by a signal: a test that hangs fails, and what it holds is tidied up
    limits = (f"--timeout={_TEST_S}", "--timeout-method=signal")
    return [sys.executable, "-m", "pytest", "--capture=no", "--durations=15", *limits, *arguments]


def api_tests() -> list[str]:
    """Modules with tests that are skipped where no API server can be started."""
    return _modules(API_TESTS, "api_server")


def beside_tests() -> list[str]:
    """Modules that are run beside the others."""
    return [module for folder, word in BESIDE_TESTS for module in _modules((folder,), word)]


def _modules(folders: Sequence[str], word: str) -> list[str]:
    found = sorted(f for folder in folders for f in (ROOT / folder).rglob("test_*.py"))
    return [str(f.relative_to(ROOT)) for f in found if word in f.read_text()]


def test(cluster: Cluster, arguments: Sequence[str]) -> int:
    """pytest's exit status. Afterwards the cluster is down, unless it was up before."""
    keep = cluster.is_up()
    try:
        with stage("build"):
            cluster.build()
        with stage("tests"):
            return _pytest(commands(arguments), _environment(cluster))
    finally:
        with deaf():
            if not keep:
                cluster.down()


def _environment(cluster: Cluster) -> dict[str, str]:
    """Tests that need no more than an API server take the cluster's."""
    if isinstance(cluster, Own):
        return {"TARTLET_K8S": str(toolchain.kubernetes(cluster.layout)), **os.environ}
    return dict(os.environ)


def _pytest(commands: Sequence[Sequence[str]], environment: dict[str, str]) -> int:
    """Runs them side by side, and shows at the end what all but the first printed; the first status that isn't 0.

    One that collects nothing, as `-k` may have it, counts only where none does.
    """
    first, *others = commands
    with contextlib.ExitStack() as stack:
        beside = []
        for command in others:
            said = stack.enter_context(tempfile.TemporaryFile())
            stack.callback(_show, said)
            beside.append(stack.enter_context(_running(command, environment, said)))
        main = stack.enter_context(_running(first, environment))
        statuses = [main.wait(), *(process.wait() for process in beside)]
    counted = [status for status in statuses if status != _NOTHING_COLLECTED]
    return next((status for status in counted if status), 0) if counted else _NOTHING_COLLECTED


def _show(said: IO[bytes]) -> None:
    said.seek(0)
    sys.stdout.buffer.write(said.read())
    sys.stdout.flush()


@contextlib.contextmanager
def _running(
    pytest: Sequence[str], environment: dict[str, str], output: IO[bytes] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """pytest; when we are to end, it is asked to end as by Ctrl-C, and so tidies up."""
    # in a session of its own: a signal for all of us must not end it before it has tidied up
    process = subprocess.Popen(
        pytest, cwd=ROOT, env=environment, start_new_session=True, stdout=output, stderr=output and subprocess.STDOUT
    )
    try:
        yield process
    finally:
        with deaf():
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(_END_S)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
