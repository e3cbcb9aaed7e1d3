"""What every benchmark makes: a table with its conditions, a plot as PNG and SVG, and JSON on request.

A benchmark builds a `Report`, and `emit` writes the report where the command line asked. Ratios come from runs measured
side by side, never from a stored number.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.harness.provenance import machine, provenance

MARKED = 50
"""Points of a line that are marked at most: with more, the marks hide the line."""
PLOTS = Path(__file__).resolve().parents[2] / "build" / "bench"


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound that a measured value is held against."""

    name: str
    value: float
    bound: float
    at_least: bool  # else at most

    @property
    def met(self) -> bool:
        """Whether the value is on the right side."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        return f"{'met ' if self.met else 'MISS'}  {self.name}: {self.value:.3g} ({sign} {self.bound:g})"


@dataclass(frozen=True, slots=True)
class Series:
    """One line or group of bars of the plot."""

    label: str
    x: Sequence[float | str]
    y: Sequence[float]


@dataclass(slots=True)
class Report:
    """A table with its title, the conditions it was measured under, and what to plot."""

    name: str
    title: str
    columns: Sequence[str]
    rows: list[Sequence[str | float | int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    x_label: str = ""
    y_label: str = ""
    log_x: bool = False


def progress(text: str) -> None:
    """Write one line about a long measurement to standard error."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def parser(
    name: str, doc: str | None, *, repeat: int = 5, goals: bool = True, plots: bool = True
) -> argparse.ArgumentParser:
    """Make a parser with the flags that all benchmarks share.

    Args:
        name: what `tartlet bench` calls it.
        doc: what it measures.
        repeat: its default of `--repeat`.
        goals: whether it has any, for `--check`.
        plots: whether it draws any, for `--plot`.
    """
    p = argparse.ArgumentParser(
        prog=f"tartlet bench {name}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    p.add_argument("--json", type=_new_file, metavar="FILE", help="write the numbers here")
    if plots:
        told = "write plots as PNG and SVG here (default: the checkout's build/bench)"
        p.add_argument("--plot", type=Path, default=PLOTS, metavar="DIR", help=told)
    p.set_defaults(provenance=provenance(sys.argv[1:]))
    p.add_argument("--repeat", type=positive, default=repeat, metavar="N", help="repetitions (default %(default)s)")
    if goals:
        p.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    else:
        p.set_defaults(check=False)
    return p


def positive(text: str) -> int:
    """Parse a number of at least 1, for `add_argument`."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def _new_file(text: str) -> Path:
    """Parse a path where a file can be made, so that a wrong path is told before minutes of measuring."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a directory")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no directory {path.parent}")
    return path


def emit(reports: Sequence[Report], args: argparse.Namespace) -> int:
    """Print the tables, write what was asked for; the exit code is 1 if `--check` found a goal missed."""
    console = Console(width=120 if not sys.stdout.isatty() else None)
    for r in reports:
        table = Table(title=r.title, title_justify="left")
        for i, column in enumerate(r.columns):
            table.add_column(column, justify="left" if i == 0 else "right")
        for row in r.rows:
            table.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row))
        if r.rows:  # else: a plot alone
            console.print(table)
        for line in (*r.notes, *map(str, r.goals)):
            console.print(f"  {line}", highlight=False)
    m = machine()
    console.print(f"  machine: {m['cpu']}, {m['cores']} cores, Python {m['python']}", highlight=False)
    if args.json:
        document = args.provenance | {"reports": [asdict(r) | {"goals": [asdict(g) for g in r.goals]} for r in reports]}
        args.json.write_text(json.dumps(document, indent=1) + "\n")
    for r in reports:
        if r.series:
            args.plot.mkdir(parents=True, exist_ok=True)
            _plot(r, args.plot)
            console.print(f"  plot: {args.plot / r.name}.png and .svg", highlight=False, soft_wrap=True)
    missed = [g for r in reports for g in r.goals if not g.met]
    return 1 if args.check and missed else 0


def _plot(r: Report, directory: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    draw: Callable[..., Any] = axes.plot
    bars = any(isinstance(x, str) for s in r.series for x in s.x)
    for i, s in enumerate(r.series):
        if bars:
            width = 0.8 / len(r.series)
            axes.bar([j + i * width for j in range(len(s.x))], s.y, width, label=s.label)
        else:
            draw(s.x, s.y, marker="o" if len(s.x) <= MARKED else "", label=s.label)
    if bars:
        names = r.series[0].x
        axes.set_xticks([j + 0.4 - 0.4 / len(r.series) for j in range(len(names))], [str(n) for n in names])
    if r.log_x:
        axes.set_xscale("log", base=2)
    axes.set_title(r.title, fontsize=10)
    axes.set_xlabel(r.x_label)
    axes.set_ylabel(r.y_label)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    if len(r.series) > 1:
        axes.legend(frameon=False)
    for suffix in ("png", "svg"):
        figure.savefig(directory / f"{r.name}.{suffix}", dpi=140)
    plt.close(figure)
