"""Runs of pytest, with real ones on small tests: one retry for what failed, in order to the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tools.testing import outcome
from tools.testing.exceptions import Exceptions
from tools.testing.runs import NOTES, ROOT, Part, Runner

ONCE = """
from pathlib import Path

def test_fails_the_first_time():
    mark = Path(__file__).with_suffix(".ran")
    ran = mark.exists()
    mark.touch()
    assert ran
"""
ALWAYS = "def test_fails(): assert False\n"
NEVER = "def test_passes(): pass\n"


@pytest.fixture(autouse=True)
def _of_no_larger_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the tests that fail here on purpose out of the notes of the run that this test is part of."""
    monkeypatch.delenv(NOTES, raising=False)


def part(place: Path, name: str, text: str) -> Part:
    """A module with these tests, as a part of a run; the project's own settings don't apply."""
    file = place / f"test_{name}.py"
    file.write_text(text)
    return Part(name, ("-q", f"--rootdir={place}", "-c", os.devnull, str(file)))


def test_a_test_that_fails_once_and_then_passes_fails_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert Runner().run([part(tmp_path, "once", ONCE)], Exceptions()) == 0
    assert "== recovered: test_once.py::test_fails_the_first_time " in capfd.readouterr().out


def test_a_test_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    parts = [part(tmp_path, "once", ONCE), part(tmp_path, "always", ALWAYS), part(tmp_path, "never", NEVER)]
    assert Runner(at_once=2).run(parts, Exceptions()) == 1


def test_a_flaky_test_that_fails_twice_is_printed_and_forgiven(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    exceptions = Exceptions(flaky={"test_always.py::test_fails": "reason"})
    assert Runner().run([part(tmp_path, "always", ALWAYS)], exceptions) == 0
    assert "flaky, forgiven: test_always.py::test_fails" in capfd.readouterr().out


def test_a_test_that_judges_others_is_not_saved_by_running_alone(tmp_path: Path) -> None:
    exceptions = Exceptions(never={"test_once.py": "reason"})
    assert Runner().run([part(tmp_path, "once", ONCE)], exceptions) == 1


def test_many_failures_are_not_run_again(tmp_path: Path) -> None:
    many = "import pytest\n" + textwrap.dedent("""
        @pytest.mark.parametrize("n", range(11))
        def test_fails(n):
            with open(__file__ + ".ran", "a") as f: f.write("x")
            assert False
    """)
    assert Runner().run([part(tmp_path, "many", many)], Exceptions()) == 1
    assert (tmp_path / "test_many.py.ran").read_text() == "x" * 11


@pytest.mark.parametrize(
    ("text", "status"),
    [("import os\ndef test_it(): os._exit(7)\n", 7), ("import os\ndef test_it(): os._exit(1)\n", 1)],
)
def test_a_pytest_that_does_not_get_through_fails_the_run_at_once(tmp_path: Path, text: str, status: int) -> None:
    assert Runner(at_once=2).run([part(tmp_path, "dies", text), part(tmp_path, "never", NEVER)], Exceptions()) == status


def test_one_that_finds_no_test_is_a_failure_only_where_all_do(tmp_path: Path) -> None:
    nothing = part(tmp_path, "nothing", "")
    assert Runner(at_once=2).run([nothing, part(tmp_path, "never", NEVER)], Exceptions()) == 0
    assert Runner().run([nothing], Exceptions()) == 5


def test_the_closing_line_counts_all_parts_and_the_recovered_tests_of_earlier_runs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    parts = [part(tmp_path, "once", ONCE), part(tmp_path, "always", ALWAYS), part(tmp_path, "never", NEVER)]
    notes = tmp_path / "notes"
    notes.write_text("earlier.py::test_of_an_earlier_run\n")
    Runner(at_once=2, environment=os.environ | {NOTES: str(notes)}).run(parts, Exceptions())
    *_, first, second, closing = capfd.readouterr().out.splitlines()
    assert "1 failed, 2 passed, 2 recovered in" in closing
    assert first.startswith("== recovered: earlier.py::test_of_an_earlier_run ")
    assert second.startswith("== recovered: test_once.py::test_fails_the_first_time ")


@pytest.mark.parametrize("wrong", [0, 1])
def test_the_comparisons_of_all_parts_are_added_up(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], wrong: int
) -> None:
    says = f"import atexit\natexit.register(print, 'books: 3 compared with folds, of 2 programs, {wrong} wrong')\n"
    parts = [part(tmp_path, "says", says + NEVER), part(tmp_path, "too", says + NEVER)]
    assert Runner(at_once=2).run(parts, Exceptions()) == outcome.OK
    told = capfd.readouterr().out
    assert f"== books: 6 compared with folds, of 4 programs, {2 * wrong} wrong" in told
    assert ("== a book of control was wrong" in told) == bool(wrong)


def test_an_interrupted_run_ends_its_pytests_in_order(tmp_path: Path) -> None:
    waits = part(
        tmp_path,
        "waits",
        f"""
import pathlib, pytest, time

@pytest.fixture
def held():
    yield
    pathlib.Path({str(tmp_path / "tidied")!r}).touch()

def test_it(held):
    pathlib.Path({str(tmp_path / "begun")!r}).touch()
    time.sleep(60)
""",
    )
    program = (
        f"from tools.testing.runs import *; from tools.testing.exceptions import Exceptions; "
        f"Runner(2).run([Part('a', {waits.arguments!r})], Exceptions())"
    )
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.wait(30)
    assert (tmp_path / "tidied").exists()
