"""One run of the tests, from a cluster that may not be there to one that is gone again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from e2e.cluster import toolchain
from e2e.cluster.layout import ROOT
from e2e.cluster.own import deaf, stage
from e2e.cluster.provider import Cluster, Own

TESTS = "e2e/tests"
API_TESTS = ("tests/cli", "tests/operator")
"""Of these, the modules that want an API server; they come first: it and a cluster would be in each other's way."""

CHART_TESTS = ("tests/chart",)
"""Of these, the modules that render the chart, which elsewhere are skipped where no Helm is."""

_TEST_S = 300
_END_S = 60.0


def command(arguments: Sequence[str]) -> list[str]:
    """pytest, on the tests that the arguments name, else on all."""
    named = [a for a in arguments if (ROOT / a.partition("::")[0]).exists() and not a.startswith("-")]
    tests = [] if named else [*chart_tests(), *api_tests(), TESTS]
    # by a signal: a test that hangs fails, and what it holds is tidied up
    limits = (f"--timeout={_TEST_S}", "--timeout-method=signal")
    return [sys.executable, "-m", "pytest", "--capture=no", "--durations=15", *limits, *tests, *arguments]


def api_tests() -> list[str]:
    """Modules with tests that are skipped where no API server can be started."""
    return _modules(API_TESTS, "api_server")


def chart_tests() -> list[str]:
    """Modules with tests that are skipped where no Helm is."""
    return _modules(CHART_TESTS, "tests.chart.render")


def _modules(folders: Sequence[str], word: str) -> list[str]:
    found = sorted(f for folder in folders for f in (ROOT / folder).glob("test_*.py"))
    return [str(f.relative_to(ROOT)) for f in found if word in f.read_text()]


def test(cluster: Cluster, arguments: Sequence[str]) -> int:
    """pytest's exit status. Afterwards the cluster is down, unless it was up before."""
    keep = cluster.is_up()
    try:
        with stage("build"):
            cluster.build()
        with stage("tests"):
            return _pytest(command(arguments), _environment(cluster))
    finally:
        with deaf():
            if not keep:
                cluster.down()


def _environment(cluster: Cluster) -> dict[str, str]:
    """Tests that need no more than an API server take the cluster's."""
    if isinstance(cluster, Own):
        return {"TARTLET_K8S": str(toolchain.kubernetes(cluster.layout)), **os.environ}
    return dict(os.environ)


def _pytest(pytest: list[str], environment: dict[str, str]) -> int:
    """Runs pytest; when we are to end, it is asked to end as by Ctrl-C, and so tidies up."""
    # in a session of its own: a signal for all of us must not end it before it has tidied up
    process = subprocess.Popen(pytest, cwd=ROOT, env=environment, start_new_session=True)
    try:
        return process.wait()
    finally:
        with deaf():
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(_END_S)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
