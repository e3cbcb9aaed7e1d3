"""The order in which the tests on a cluster run."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.tests.conftest import turn


def test_every_module_has_a_place_and_those_that_remove_the_release_come_late(repo: Path) -> None:
    modules = [str(f.relative_to(repo)) for f in (repo / "e2e" / "tests").rglob("test_*.py")]
    ordered = sorted(modules, key=turn)
    assert [Path(m).stem for m in ordered[:2]] == ["test_lifecycle", "test_answers"]
    assert [Path(m).stem for m in ordered[-2:]] == ["test_releases", "test_traffic"]
    assert turn("tests/operator/test_live.py") < turn(modules[0])


def test_a_module_without_a_place_is_refused() -> None:
    with pytest.raises(pytest.UsageError):
        turn("e2e/tests/releases/test_new.py::test_it")
