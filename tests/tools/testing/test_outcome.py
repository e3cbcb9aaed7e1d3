"""The meaning of pytest's results."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tools.testing import outcome
from tools.testing.exceptions import Exceptions


def test_a_test_that_fails_twice_fails_the_run_unless_it_is_known_to_be_flaky() -> None:
    verdict = outcome.judge({"a", "b", "c[1]"}, {"b", "c[1]"}, Exceptions({"c": "reason"}))
    assert (verdict.failed, verdict.forgiven, verdict.recovered) == (("b",), ("c[1]",), ("a",))
    assert len(list(verdict.lines())) == 2


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("=== 1 failed, 77 passed in 6.98s ===", {"failed": 1, "passed": 77}),
        ("484 passed, 15 skipped, 1 warning in 30.55s", {"passed": 484, "skipped": 15, "warnings": 1}),
        ("==== 3 passed, 1 error in 766.12s (0:12:46) =====", {"passed": 3, "errors": 1}),
        ("no tests ran in 0.01s", {}),
        ("a program printed: 3 things in 2 boxes", {}),
    ],
)
def test_numbers_are_read_from_the_closing_line(line: str, wanted: dict[str, int]) -> None:
    assert outcome.counts(f"....\n{line}\n") == Counter(wanted)


def test_a_closing_line_of_several_runs_can_be_read_again() -> None:
    total = Counter({"passed": 5, "failed": 1, "errors": 2})
    line = outcome.closing_line(total, 61.5)
    assert "1 failed, 5 passed, 2 errors in 61.50s (0:01:01)" in line
    assert outcome.counts(line) == total


def test_recovered_tests_count_as_passed_and_forgiven_ones_as_expected_failures() -> None:
    total = Counter({"passed": 5, "failed": 1, "errors": 2})
    outcome.correct(total, outcome.Verdict(("x",), ("y",), ("z",)))
    assert +total == Counter({"passed": 6, "xfailed": 1, "errors": 1})


def test_failures_are_read_from_pytests_cache(tmp_path: Path) -> None:
    assert outcome.failures(tmp_path) == set()
    (tmp_path / "v" / "cache").mkdir(parents=True)
    (tmp_path / "v" / "cache" / "lastfailed").write_text(json.dumps({"a.py::test_x": True}))
    assert outcome.failures(tmp_path) == {"a.py::test_x"}


def test_recovered_tests_of_several_runs_are_kept_in_one_file(tmp_path: Path) -> None:
    assert outcome.noted(tmp_path / "notes", ("a", "b")) == ["a", "b"]
    assert outcome.noted(tmp_path / "notes", ()) == ["a", "b"]
    assert outcome.noted(tmp_path / "notes", ("c",)) == ["a", "b", "c"]
