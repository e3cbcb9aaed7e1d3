"""The file of tests that are treated unlike others: its rules, and that its tests exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.testing.exceptions import MAX_FLAKY, BadExceptions, Exceptions, read

REASON = '"waits for a clock on a busy machine"'


def written(place: Path, text: str) -> Path:
    file = place / "retries.toml"
    file.write_text(text)
    return file


def flaky(number: int) -> str:
    return "[flaky]\n" + "\n".join(f'"tests/test_it.py::test_{n}" = {REASON}' for n in range(number))


def test_five_flaky_tests_are_allowed_and_a_sixth_is_not(tmp_path: Path) -> None:
    assert len(read(written(tmp_path, flaky(MAX_FLAKY))).flaky) == MAX_FLAKY == 5
    with pytest.raises(BadExceptions):
        read(written(tmp_path, flaky(MAX_FLAKY + 1)))


@pytest.mark.parametrize("text", ['[flaky]\n"tests/test_it.py::test_it" = "flaky"', f'[ignored]\n"x" = {REASON}'])
def test_a_test_without_a_reason_and_an_unknown_table_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadExceptions):
        read(written(tmp_path, text))


def test_a_name_stands_for_all_parameters_and_a_parameter_for_itself() -> None:
    exceptions = Exceptions({"a.py::test_x": REASON, "a.py::test_y[1]": REASON}, {"b.py": REASON})
    assert exceptions.forgives("a.py::test_x[1]")
    assert exceptions.forgives("a.py::test_y[1]")
    assert not exceptions.forgives("a.py::test_y[2]")
    assert not exceptions.runs_again("b.py::test_z")
    assert exceptions.runs_again("a.py::test_x")


def test_every_test_that_the_file_names_exists(repo: Path) -> None:
    exceptions = read()
    for name in [*exceptions.flaky, *exceptions.never]:
        file, _, test = name.partition("[")[0].partition("::")
        assert (repo / file).is_file(), name
        assert f"def {test}" in (repo / file).read_text(), name
