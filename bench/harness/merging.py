"""One document of several runs of the same benchmark: the median of each number over the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.harness.intervals import bootstrap_median, median, resolved

INTERVAL = "95% interval"
"""The column of a ratio's interval, behind the column of the ratio."""
RESOLVED = "of off"
"""The column of ratios whose interval is told by `resolved`."""


def count_labels(row: Sequence[Any]) -> int:
    """Count the cells that name a row: the first one, and the texts and whole numbers that follow it at once."""
    labels = 1
    while labels < len(row) and isinstance(row[labels], str | int):
        labels += 1
    return labels


def merged(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge what `report.emit` wrote in several runs of the same benchmark with the same flags.

    Args:
        documents: at least one; commit, date and load are the last one's.

    Returns:
        A document of the same form. A cell, a goal's value or a point of a plot is the median over the documents; text
        is the last document's, but an interval beside a ratio is that of the ratios.
    """
    last = documents[-1]
    reports = [_report([d["reports"][i] for d in documents]) for i in range(len(last["reports"]))]
    return {**last, "runs": len(documents), "reports": reports}


def _report(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    last = runs[-1]
    found: dict[str, list[list[Any]]] = {}
    for run in runs:
        for row in run["rows"]:
            found.setdefault(_label(row), []).append(row)
    rows = [_row(found[_label(row)], last["columns"]) for row in last["rows"]]
    goals = []
    for goal in last["goals"]:
        values = [g["value"] for run in runs for g in run["goals"] if g["name"] == goal["name"]]
        bounds = [g["bound"] for run in runs for g in run["goals"] if g["name"] == goal["name"]]
        goals.append({**goal, "value": median(values), "bound": median(bounds)})
    return {**last, "rows": rows, "goals": goals}


def _label(row: Sequence[Any]) -> str:
    """Write the cells that name a row, so that rows of different runs can be matched."""
    return repr(row[: count_labels(row)])


def _row(runs: Sequence[Sequence[Any]], columns: Sequence[str]) -> list[Any]:
    row: list[Any] = []
    for i, cell in enumerate(runs[-1]):
        values = [run[i] for run in runs]
        if columns[i] == INTERVAL and cell and len(runs) > 1:
            low, high = bootstrap_median([float(run[i - 1]) for run in runs])
            row.append(resolved(low, high) if columns[i - 1] == RESOLVED else f"{low:.3f} to {high:.3f}")
        elif isinstance(cell, float) and all(isinstance(v, float | int) for v in values):
            row.append(float(median(values)))
        else:
            row.append(cell)
    return row
