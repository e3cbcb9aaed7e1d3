"""One run of the tests, from a cluster that may not be there to one that is gone again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from e2e.cluster.layout import ROOT, default_layout
from e2e.cluster.own.cluster import stage
from e2e.cluster.provider import Cluster
from e2e.cluster.turn import my_turn
from tools.testing.runs import Part, Runner, uninterrupted

TESTS = "e2e/tests"
ALL = "--all"
"""The argument that asks for the tests beyond the gate too."""

GATE = ("-m", "not beyond_gate")
_TEST_S = 300


def part(arguments: Sequence[str]) -> Part:
    """Returns the pytest run for these arguments: tests that they name, all tests with `ALL`, else the gate's."""
    # the time limit raises an exception in the test, so that its fixtures are torn down
    options = ("--capture=no", "--durations=15", f"--timeout={_TEST_S}", "--timeout-method=signal")
    rest = tuple(a for a in arguments if a != ALL)
    if any((ROOT / a.partition("::")[0]).exists() for a in rest if not a.startswith("-")):
        return Part("cluster", (*options, *rest))
    return Part("cluster", (*options, TESTS, *(() if ALL in arguments else GATE), *rest))


def run(cluster: Cluster, arguments: Sequence[str], cache: Path | None = None) -> int:
    """Runs the tests, and once more those that failed, in a new pytest with a new release.

    Waits while another run of the tests uses the cluster.

    Args:
        cluster: The cluster to use.
        arguments: See `part`.
        cache: The harness's cache directory; None means the default one.

    Returns:
        pytest's exit status; 0 where all failures are forgiven. The cluster is then down, unless it was up before.
    """
    with my_turn(cache or default_layout().cache, wait=True):
        keep = cluster.is_up()
        try:
            with stage("build"):
                cluster.build()
            with stage("tests"):
                return Runner().run([part(arguments)])
        finally:
            with uninterrupted():
                if not keep:
                    cluster.down()
