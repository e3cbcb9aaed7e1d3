from __future__ import annotations

from pathlib import Path

import pytest

from tools.lint_tree import MAX_LINES, forbidden, too_long


@pytest.mark.parametrize(
    "line", ["cd /" + "root/checkout", 'open("/' + 'home/me/model")', "https://pypi" + ".org/simple"]
)
def test_a_line_tied_to_one_machine_is_found_with_its_number(line: str) -> None:
    findings = list(forbidden(Path("a.md"), f"fine\n{line}\n"))
    assert [finding.split(": ")[0] for finding in findings] == ["a.md:2"]


@pytest.mark.parametrize("line", ["ls docs/work/notes", "/usr/bin/env bash", "--model /path/to/any", "self.root/child"])
def test_a_line_that_holds_anywhere_passes(line: str) -> None:
    assert not list(forbidden(Path("a.md"), line))


def test_only_a_python_source_over_the_limit_is_called_long() -> None:
    assert list(too_long(Path("a.py"), "\n" * (MAX_LINES + 1)))
    assert not list(too_long(Path("a.py"), "\n" * MAX_LINES))
    assert not list(too_long(Path("a.md"), "\n" * (MAX_LINES + 1)))
