"""The numbers of a benchmark that ran several times: matched row by row, merged, compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.harness.merging import merged
from bench.pairs import Comparison, Short, Side


def _document(columns: Sequence[str], *rows: Sequence[Any]) -> dict[str, Any]:
    return {"reports": [{"name": "some", "columns": columns, "rows": rows, "goals": []}]}


def test_rows_that_differ_in_a_later_text_are_merged_apart() -> None:
    runs = [
        _document(["batch", "kernels", "tokens/s"], (1, "C", 100.0), (1, "torch", 10.0)),
        _document(["batch", "kernels", "tokens/s"], (1, "C", 200.0), (1, "torch", 30.0)),
    ]
    assert merged(runs)["reports"][0]["rows"] == [[1, "C", 150.0], [1, "torch", 20.0]]


@pytest.mark.parametrize(
    ("column", "ratios", "interval"),
    [
        ("ratio", (1.1, 1.2), "1.100 to 1.200"),
        ("ratio", (0.9, 1.2), "0.900 to 1.200"),
        ("of off", (1.1, 1.2), "1.100 to 1.200"),
        ("of off", (0.9, 1.02), "not resolved below 10%"),
    ],
)
def test_the_interval_of_merged_ratios_is_that_of_the_runs(
    column: str, ratios: tuple[float, float], interval: str
) -> None:
    runs = [_document(["export", column, "95% interval"], ("on", ratio, "of one run")) for ratio in ratios]
    (row,) = merged(runs)["reports"][0]["rows"]
    assert row == ["on", pytest.approx(sum(ratios) / 2), interval]


def test_a_reference_without_an_interval_stays_without_one_when_merged() -> None:
    runs = [_document(["export", "of off", "95% interval"], ("off", 1.0, ""))] * 2
    assert merged(runs)["reports"][0]["rows"] == [["off", 1.0, ""]]


def test_each_round_of_a_comparison_rotates_the_variants_of_overhead(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str, tuple[str, ...]]] = []

    def run(side: Side, benchmark: str, flags: Sequence[str]) -> dict[str, Any]:
        seen.append((benchmark, side.name, tuple(flags)))
        return _document(["program", "ratio"], ("C", 1.0))

    monkeypatch.setattr(Side, "run", run)
    sides = (Side("before", Path()), Side("after", Path()))
    plan = {"overhead": Short(["--repeat", "1"]), "start": Short([])}
    assert len(list(Comparison(plan, sides, rounds=2, budget_s=60.0).run())) == 4
    assert [s for s in seen if s[0] == "overhead"] == [
        ("overhead", "before", ("--repeat", "1", "--turn", "0")),
        ("overhead", "after", ("--repeat", "1", "--turn", "0")),
        ("overhead", "after", ("--repeat", "1", "--turn", "1")),
        ("overhead", "before", ("--repeat", "1", "--turn", "1")),
    ]
    assert all(not flags for benchmark, _, flags in seen if benchmark == "start")
