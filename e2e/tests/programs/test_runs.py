"""The life of a run: deadline, retries, output, errors, tokens, times, and end."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

from e2e.cluster.kube import Kube, Object, step, until
from e2e.tests.programs.test_answers import run
from e2e.tests.support.person import running
from e2e.tests.support.story import HELLO, SLOW, inferlet

OUTPUT_BYTES = 64 << 10
"""How many bytes of output and of result are kept."""

DEADLINE_S, TTL_S, LATE_S = 3.0, 5.0, 8.0
"""TTL_S: in this time `kubectl` reads that a run has ended. LATE_S: how long after they are due ends and deletions
are seen, at most (times in a status are whole seconds)."""

FAILING = '''
def deeper(what: str) -> None:
    """Nine."""
    raise ValueError(what)


async def main() -> None:
    print("so far", flush=True)
    deeper("on purpose")
'''

UNTIL = """
import sys
import time

async def main():
    print("attempt")
    if time.time() < float(sys.argv[1]):
        raise RuntimeError("not yet")
    return "at last"
"""

LINES = [f"{n:05} ünïcödé\n" for n in range(12_000)]
TALKS = """
async def main():
    for n in range(12_000):
        print(f"{n:05} ünïcödé")
    return "é" * 100_000
"""

SLEEPS = """
import asyncio

async def main():
    print("begun", flush=True)
    await asyncio.sleep(600)
"""

PROGRAMS = {"fails": FAILING, "until": UNTIL, "talks": TALKS, "sleeps": SLEEPS, "slow": SLOW, "hello": HELLO}


@pytest.fixture(scope="module", autouse=True)
def begun(kube: Kube, fake_pool: str) -> None:
    """Launches all runs at once."""
    with step("inferlets"):
        kube.apply(*(inferlet(f"runs-{name}", fake_pool, {"inline": text}) for name, text in PROGRAMS.items()))
        for name in PROGRAMS:
            kube.wait(f"ilet/runs-{name}", "Ready")
    kube.apply(
        run("runs-late", "runs-sleeps", deadlineSeconds=int(DEADLINE_S), retries=5),
        run("runs-unwanted", "runs-sleeps"),
        run("runs-fails", "runs-fails", retries=1),
        run("runs-until", "runs-until", args=[str(time.time() + 5.0)], retries=5),
        run("runs-talks", "runs-talks"),
        run("runs-counted", "runs-slow", args=["0.6"]),
        run("runs-passes", "runs-hello", args=["and goes"], ttlSecondsAfterFinished=int(TTL_S)),
        run("runs-stays", "runs-hello", args=["and stays"]),
    )


def ended(kube: Kube, name: str, how: str) -> Object:
    """Returns a run's status after its end, and checks that its fields are consistent."""
    kube.wait(f"irun/{name}", how)
    status: Object = kube.get(f"irun/{name}")["status"]
    assert status["phase"] == how
    conditions = {c["type"]: c["status"] for c in status["conditions"]}
    assert conditions == {"Succeeded": "False", "Failed": "False", "Running": "False"} | {how: "True"}
    assert all(c["observedGeneration"] == 1 for c in status["conditions"])
    return status


def seconds(status: Object) -> float:
    """Returns the seconds from start to end."""
    start, end = (datetime.fromisoformat(status[name]) for name in ("startTime", "completionTime"))
    return (end - start).total_seconds()


def test_a_run_whose_time_to_live_is_over_is_deleted(kube: Kube) -> None:
    with step("succeeded, and gone"):
        kube.wait("irun/runs-passes", "Succeeded")
        end = datetime.fromisoformat(kube.get("irun/runs-passes")["status"]["completionTime"]).timestamp()
        kube("wait", "irun/runs-passes", "--for=delete", "--timeout=20s")
    assert TTL_S <= time.time() - end <= TTL_S + LATE_S
    assert ended(kube, "runs-stays", "Succeeded")["output"] == "hello and stays\n"


def test_a_deadline_ends_a_program_in_a_typed_error(kube: Kube) -> None:
    status = ended(kube, "runs-late", "Failed")
    error = status["error"]
    assert (error["name"], status["attempts"], status["output"]) == ("DeadlineExceeded", 1, "begun\n")
    assert error["number"] > 0
    assert f"{DEADLINE_S:g}" in error["message"]
    assert "deadline" in error["remedy"].lower()
    assert DEADLINE_S <= seconds(status) <= DEADLINE_S + LATE_S


def test_a_failed_program_is_launched_again(kube: Kube) -> None:
    status = ended(kube, "runs-until", "Succeeded")
    assert 2 <= status["attempts"] <= 5
    assert (status["output"], status["result"], status.get("error")) == ("attempt\n", "at last", None)
    told = [e["reason"] for e in kube.items("events") if e["involvedObject"]["name"] == "runs-until"]
    assert told.count("RunRetried") == told.count("RunLaunched") - 1 == status["attempts"] - 1


def test_a_programs_own_traceback_is_told(kube: Kube) -> None:
    status = ended(kube, "runs-fails", "Failed")
    error = status["error"]
    assert (status["attempts"], status["output"], error["name"]) == (2, "so far\n", "ProgramFailed")
    lines = FAILING.splitlines()
    raised, called = (next(n for n, line in enumerate(lines, 1) if what in line) for what in ("raise", 'deeper("'))
    assert f"line {called}, in main" in error["traceback"]
    assert f"line {raised}, in deeper" in error["traceback"]
    assert error["traceback"].rstrip().endswith("ValueError: on purpose")
    assert "Traceback" not in error["message"]
    assert str(status).count(f"line {raised}, in deeper") == 1
    assert {c["message"].endswith("ValueError: on purpose") for c in status["conditions"] if c["message"]} == {True}
    told = {e["reason"]: e["message"] for e in kube.items("events") if e["involvedObject"]["name"] == "runs-fails"}
    assert "ValueError: on purpose" in told["RunFailed"]


def test_output_is_kept_to_a_bound_and_says_so(kube: Kube) -> None:
    status = ended(kube, "runs-talks", "Succeeded")
    whole, kept = "".join(LINES).encode(), status["output"].encode()
    assert status["outputTruncated"] is True
    assert OUTPUT_BYTES - 4 < len(kept) <= OUTPUT_BYTES
    assert whole.endswith(kept)
    assert status["result"] == "é" * (OUTPUT_BYTES // 2)
    assert kube.get("irun/runs-stays")["status"].get("outputTruncated", False) is False


def test_tokens_and_times_are_counted(kube: Kube) -> None:
    status = ended(kube, "runs-counted", "Succeeded")
    assert status["result"] == "to the end"
    assert status["tokens"] == {"input": 3, "output": 3}
    created = datetime.fromisoformat(kube.get("irun/runs-counted")["metadata"]["creationTimestamp"])
    assert 0 <= (datetime.fromisoformat(status["startTime"]) - created).total_seconds() <= LATE_S
    assert 0 <= seconds(status) <= 30
    assert ended(kube, "runs-stays", "Succeeded")["tokens"] == {"input": 0, "output": 0}


def test_deleting_a_run_ends_its_program(kube: Kube) -> None:
    until(lambda: kube.get("irun/runs-unwanted")["status"].get("output") == "begun\n", "its output is shown")
    ended(kube, "runs-late", "Failed")  # its program has ended too
    assert running(kube, "runs-sleeps") == ["runs-sleeps"]
    with step("deleted, and its program ended"):
        kube("delete", "irun/runs-unwanted")
        until(lambda: running(kube, "runs-sleeps") == [], "the program has ended", 20)
