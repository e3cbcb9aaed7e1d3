"""`tartlet bench`: the cheapest benchmarks, with the smallest settings, make all that every one makes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tartlet_cli.commands.bench import BENCHMARKS
from tartlet_cli.console.places import CHECKOUT
from tests.e2e.serving import tartlet_cli


def test_a_benchmark_prints_a_table_and_writes_plots_and_numbers(run_dir: Path, tmp_path: Path) -> None:
    numbers, plots = tmp_path / "calls.json", tmp_path / "plots"
    args = ("calls", "--alive", "2", "--repeat", "1", "--no-tls", "--json", str(numbers), "--plot", str(plots))
    done = tartlet_cli(run_dir, "bench", *args, timeout_s=100)
    assert done.returncode == 0, done.stderr
    document = json.loads(numbers.read_text())
    assert document["flags"] == list(args[1:])
    assert {"commit", "date", "machine", "load_average"} <= document.keys()
    (report,) = document["reports"]
    assert report["columns"] == ["call", "median us", "p99 us", "goal us"]
    measured = {row[0]: row[1:3] for row in report["rows"]}
    assert list(measured) == ["runtime answers", "control answers", "no reply, 64 a submit", "bare gRPC echo"]
    assert all(0 < median <= p99 for median, p99 in measured.values())
    lines = done.stdout.splitlines()
    assert lines[0].startswith(report["title"])
    for name, (median, _) in measured.items():
        assert any(name in line and f"{median:.4g}" in line for line in lines)
    assert len(report["goals"]) == 3
    assert (plots / "calls.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert "<svg" in (plots / "calls.svg").read_text()


def test_a_goal_that_is_missed_fails_where_that_is_asked_for(run_dir: Path, tmp_path: Path) -> None:
    numbers = tmp_path / "control.json"
    args = ("--programs", "1", "--tokens", "2", "--repeat", "1", "--json", str(numbers), "--check")
    done = tartlet_cli(run_dir, "bench", "control", *args)  # one program pays for a whole step: far above the goal
    assert (done.returncode, done.stderr) == (1, "")
    (report,) = json.loads(numbers.read_text())["reports"]
    *parts, total = (row[1] for row in report["rows"])
    assert total == pytest.approx(sum(parts))
    command, token = (goal["value"] for goal in report["goals"])
    assert (command, token) == (total, pytest.approx(3 * total)), "a token takes three commands"


def test_a_wrong_option_is_told_before_anything_is_measured(run_dir: Path) -> None:
    for args, said in (
        (("--repeat", "0"), "0 is less than 1"),
        (("--json", "nowhere/numbers.json"), "there is no directory nowhere"),
        (("--rep", "2"), "unrecognized arguments: --rep"),
        (("--plot", "."), "unrecognized arguments: --plot"),  # it draws none
    ):
        done = tartlet_cli(run_dir, "bench", "control", *args)
        assert done.returncode == 2
        assert done.stderr.startswith("usage: tartlet bench control ")
        assert said in done.stderr


def test_two_checkouts_are_compared_figure_by_figure(tmp_path: Path) -> None:
    numbers = tmp_path / "pairs.json"
    flags = ("--", "--programs", "1", "--tokens", "2", "--repeat", "1")
    command = (sys.executable, "-m", "bench.pairs", "control", "--against", str(CHECKOUT), "--rounds", "2")
    files = ("--json", str(numbers), "--results", str(tmp_path))
    done = subprocess.run([*command, *files, *flags], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {(f["row"], f["column"]): f for f in json.loads(numbers.read_text())["figures"]}
    total = found["total", "us a command"]
    assert len(total["before"]) == len(total["after"]) == 2
    each = [after / before for after, before in zip(total["after"], total["before"], strict=True)]
    assert total["ratio"] == pytest.approx(sum(each) / 2)
    assert (total["low"], total["high"]) == (min(each), max(each))
    assert "control: total: us a command" in done.stdout
    (report,) = json.loads((tmp_path / "control.json").read_text())["reports"]
    assert dict(row[:2] for row in report["rows"])["total"] == pytest.approx(sum(total["after"]) / 2)


def test_a_benchmark_that_fails_ends_the_comparison_with_its_error(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "bench.pairs", "control", "--against", str(CHECKOUT), "--", "--programs", "0")
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"control failed in {CHECKOUT} (before)" in done.stderr
    assert "0 is less than 1" in done.stderr


def test_each_benchmark_is_there_under_its_name(run_dir: Path) -> None:
    told = tartlet_cli(run_dir, "bench", "--help").stdout
    for name, (module, what) in BENCHMARKS.items():
        assert f'parser("{name}", __doc__' in (CHECKOUT / "bench" / f"{module.replace('.', '/')}.py").read_text()
        assert what in told
