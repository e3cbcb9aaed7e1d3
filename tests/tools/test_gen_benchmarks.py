"""The generator of the benchmarks' tables: results must come from committed code that HEAD contains."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.gen_benchmarks import bad_origin, details, revisions


def git(place: Path, *args: str) -> str:
    identity = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.com")
    done = subprocess.run(["git", *identity, "-C", str(place), *args], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def committed(place: Path, subject: str) -> str:
    git(place, "commit", "--quiet", "--allow-empty", "-m", subject)
    return git(place, "rev-parse", "--short=12", "HEAD")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    place = tmp_path / "checkout"
    place.mkdir()
    git(place, "init", "--quiet")
    return place


def test_results_of_an_ancestor_may_be_published_and_others_not(checkout: Path) -> None:
    first = committed(checkout, "First")
    git(checkout, "checkout", "--quiet", "-b", "aside")
    aside = committed(checkout, "Aside")
    assert not bad_origin(aside, checkout)
    git(checkout, "checkout", "--quiet", first)
    head = committed(checkout, "Second")
    assert not bad_origin(first, checkout)
    assert not bad_origin(head, checkout)
    assert aside in bad_origin(aside, checkout)
    assert bad_origin("0123456789ab", checkout)
    assert bad_origin(f"{head}+", checkout)
    assert bad_origin("unknown", checkout)


def test_a_shallow_clone_says_that_it_can_not_check(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = committed(checkout, "First")
    committed(checkout, "Second")
    shallow = checkout.with_name("shallow")
    git(checkout, "clone", "--quiet", "--depth=1", f"file://{checkout}", str(shallow))
    assert not bad_origin(first, shallow)
    assert "shallow" in capsys.readouterr().out


def test_without_git_nothing_can_be_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not bad_origin("0123456789ab", tmp_path)
    assert "no git checkout" in capsys.readouterr().out


def test_both_sides_of_a_comparison_are_named() -> None:
    named = list(revisions({"pairs": {"commit": "c", "before": "a", "after": "c"}, "calls": {"commit": "d"}}))
    assert [commit for _, commit in named] == ["c", "a", "c", "d"]


def test_a_plot_is_shown_where_there_is_one_and_a_report_without_rows_only_with_its_plot() -> None:
    reports = [
        {"name": name, "title": name.title(), "columns": ["what", "s"], "rows": rows, "notes": []}
        for name, rows in (("table", [["a", 1.0]]), ("both", [["b", 2.0]]), ("plot", []), ("neither", []))
    ]
    lines = list(details({"all": {"reports": reports}}, {"both", "plot"}))
    assert [line for line in lines if "**" in line or "![" in line] == [
        "**table**: Table",
        "**both**: Both",
        "![Both](images/both.svg)",
        "**plot**: Plot",
        "![Plot](images/plot.svg)",
    ]
    assert "| b | 2 |" in lines
