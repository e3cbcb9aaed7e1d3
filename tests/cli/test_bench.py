"""`tartlet bench`: the cheapest benchmark, with the smallest settings, makes all that every one makes."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.serving import tartlet_cli


def test_a_benchmark_prints_a_table_and_writes_plots_and_numbers(run_dir: Path, tmp_path: Path) -> None:
    numbers, plots = tmp_path / "calls.json", tmp_path / "plots"
    args = ("calls", "--alive", "2", "--repeat", "1", "--json", str(numbers), "--plot", str(plots))
    done = tartlet_cli(run_dir, "bench", *args, timeout_s=100)
    assert done.returncode == 0, done.stderr
    (report,) = json.loads(numbers.read_text())["reports"]
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
