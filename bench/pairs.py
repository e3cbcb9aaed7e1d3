"""Compare this checkout with another one: the same benchmark in both, alternately, figure by figure.

A round runs the benchmark once in each checkout, each with its own `.venv`; the rounds take turns in which checkout
goes first. The ratio of a figure is the median over the rounds of after / before, with a bootstrap interval of 95%:
"before" is the other checkout, "after" is this one. `all` runs a short form of every benchmark in turn, round by
round, until the time budget is spent; a benchmark that fails is left out from then on.

  python -m bench.pairs control --against ../before --rounds 8 -- --programs 32
  python -m bench.pairs launch --against ../before --rounds 3 -- --repeat 1
  python -m bench.pairs all --against ../before --budget-s 1500 --json bench/results/pairs.json --results bench/results
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.harness.intervals import bootstrap_median, median
from bench.harness.merging import count_labels, merged
from bench.harness.provenance import provenance, revision

HERE: Final = Path(__file__).resolve().parents[1]


class Short(NamedTuple):
    """A short form of a benchmark for `all`."""

    flags: Sequence[str]
    rounds: int | None = None  # at most; None: as many as the others


QUICK: Final[Mapping[str, Short]] = {
    "control": Short(["--repeat", "5", "--context", "128,2048"]),
    "start": Short(["--repeat", "2"]),
    "calls": Short(["--repeat", "2"]),
    "launch": Short(["--repeat", "1"]),
    "overhead": Short(["--repeat", "1"]),
    "batching": Short(["--repeat", "1"]),
    "orders": Short(["--repeat", "1"]),
    "engine": Short(["--repeat", "1", "--kernels", "C"]),
    "operator": Short(["--objects", "1000", "--steady", "10", "--more", "20"], 1),
    "telemetry": Short(["--starts", "2"], 2),
}
"""The benchmarks of `all`, short, in the order in which they are worth their time: a round takes about 15 minutes."""

TURNS: Final = frozenset({"overhead"})
"""Benchmarks whose variants take turns in an order that `--turn N` rotates: the round's number goes there."""

BARE: Final = frozenset({"control"})
"""Benchmarks that start no processes of the product."""

Figures = dict[tuple[str, str, str], float]  # (report, row, column) -> value


class Side(NamedTuple):
    """One of the two checkouts."""

    name: str  # before or after
    checkout: Path

    @property
    def environment(self) -> dict[str, str]:
        """What processes of this checkout see: a cache of their own, because the user's keeps one Python guest only."""
        env = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "VIRTUAL_ENV"}}
        return env | {"TARTLET_CACHE_DIR": str(self.checkout / "build" / "cache")}

    def prepare(self) -> None:
        """Build what the checkout's processes need and keep in their cache: the Python guest, the kernels."""
        subprocess.run(["tools/setup.sh"], cwd=self.checkout, env=self.environment, check=True, stdout=sys.stderr)

    def run(self, benchmark: str, flags: Sequence[str]) -> dict[str, Any]:
        """Run one benchmark there; the content of its JSON file.

        Raises:
            BenchmarkFailed: it ended with an error; says how.
        """
        python = self.checkout / ".venv" / "bin" / "python"
        env = self.environment
        with tempfile.TemporaryDirectory(prefix="tt-") as scratch:
            numbers = Path(scratch) / "numbers.json"
            command = [str(python), "-m", "tartlet_cli", "bench", benchmark, "--json", str(numbers), *flags]
            done = subprocess.run(
                command,
                cwd=self.checkout,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode or not numbers.exists():
                raise BenchmarkFailed(benchmark, self, (done.stderr or done.stdout).strip()[-2000:])
            found: dict[str, Any] = json.loads(numbers.read_text())
            return found


class BenchmarkFailed(RuntimeError):
    """A benchmark ended with an error in one of the checkouts."""

    def __init__(self, benchmark: str, side: Side, told: str) -> None:
        super().__init__(f"{benchmark} failed in {side.checkout} ({side.name}):\n{told}")


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of both checkouts, a value a round."""

    benchmark: str
    report: str
    row: str
    column: str
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)

    def ratio(self) -> tuple[float, float, float]:
        """Median of after / before, and its 95% interval."""
        each = [a / b for a, b in zip(self.after, self.before, strict=False) if b]
        if not each:
            return (float("nan"),) * 3
        return (median(each), *bootstrap_median(each))


def figures_of(document: Mapping[str, Any]) -> Figures:
    """Every measured number of a benchmark's JSON: the leading texts and whole numbers of a row are its label."""
    found: Figures = {}
    for report in document["reports"]:
        columns = report["columns"]
        for row in report["rows"]:
            labels = count_labels(row)
            label = ", ".join(str(cell) for cell in row[:labels])
            for column, cell in zip(columns[labels:], row[labels:], strict=True):
                if isinstance(cell, int | float) and not column.startswith("goal"):
                    found[report["name"], label, column] = float(cell)
    return found


@dataclass(slots=True)
class Comparison:
    """Runs every benchmark of `plan` in both checkouts, round by round.

    Args:
        plan: benchmarks with their flags and most rounds.
        sides: before, after.
        rounds: pairs of each benchmark.
        budget_s: a benchmark is not begun again when its last round took longer than what is left of this.
    """

    plan: Mapping[str, Short]
    sides: tuple[Side, Side]
    rounds: int
    budget_s: float
    figures: dict[tuple[str, str, str, str], Figure] = field(default_factory=dict)
    failures: dict[str, BenchmarkFailed] = field(default_factory=dict)
    """Benchmarks that ended with an error; they are not begun again."""
    documents: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """What each benchmark wrote in this checkout, one a round."""

    def run(self) -> Iterator[None]:
        """Measure; returns to the caller after each benchmark, so that it can keep what there is."""
        took_s: dict[str, float] = {}
        started = time.monotonic()
        for i in range(self.rounds):
            for benchmark, short in self.plan.items():
                begun = time.monotonic()
                late = begun - started + took_s.get(benchmark, 0.0) > self.budget_s
                if late or benchmark in self.failures or (short.rounds is not None and i >= short.rounds):
                    continue
                try:
                    self._round(benchmark, short.flags, i)
                except BenchmarkFailed as failure:
                    self.failures[benchmark] = failure
                    sys.stderr.write(f"{failure}\n")
                took_s[benchmark] = time.monotonic() - begun
                sys.stderr.write(f"pairs: round {i + 1} of {self.rounds}, {benchmark}: {took_s[benchmark]:.0f} s\n")
                yield

    def _round(self, benchmark: str, flags: Sequence[str], number: int) -> None:
        """Run one benchmark in both checkouts; which goes first alternates, and so do the variants in `TURNS`."""
        if benchmark in TURNS:
            flags = [*flags, "--turn", str(number)]
        order = self.sides if number % 2 == 0 else self.sides[::-1]
        documents = {side.name: side.run(benchmark, flags) for side in order}
        self.documents.setdefault(benchmark, []).append(documents["after"])
        found = {name: figures_of(document) for name, document in documents.items()}
        for key, after in found["after"].items():
            if key in found["before"]:
                figure = self.figures.setdefault((benchmark, *key), Figure(benchmark, *key))
                figure.before.append(found["before"][key])
                figure.after.append(after)


def table(all_figures: Sequence[Figure]) -> Table:
    """A line for every figure."""
    result = Table()
    for column in ("figure", "rounds", "before", "after", "after / before", "95% interval"):
        result.add_column(column, justify="left" if column == "figure" else "right")
    for f in all_figures:
        ratio, low, high = f.ratio()
        values = (f"{median(f.before):.4g}", f"{median(f.after):.4g}", f"{ratio:.3f}", f"{low:.3f} to {high:.3f}")
        result.add_row(f"{f.report}: {f.row}: {f.column}", str(len(f.after)), *values)
    return result


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.pairs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("benchmark", metavar="NAME", help=f"what `tartlet bench` calls it, or all: {', '.join(QUICK)}")
    parser.add_argument("--against", type=Path, required=True, metavar="DIR", help="the other checkout, with its .venv")
    parser.add_argument("--before", metavar="NAME", help="what the file calls the other checkout (default: its commit)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="pairs (default %(default)s)")
    parser.add_argument(
        "--budget-s", type=float, default=float("inf"), metavar="S", help="begin nothing that ends later"
    )
    parser.add_argument(
        "--results",
        type=Path,
        metavar="DIR",
        help="write what each benchmark measured in this checkout to DIR/NAME.json",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, after every benchmark")
    arguments, flags = _split(sys.argv[1:])
    args = parser.parse_args(arguments)
    against = args.against.resolve()
    if not (against / ".venv" / "bin" / "python").exists():
        parser.error(f"{against} has no .venv/bin/python: run `make setup` there")
    if args.benchmark == "all":
        plan = {name: Short([*short.flags, *flags], short.rounds) for name, short in QUICK.items()}
    else:
        plan = {args.benchmark: Short(flags)}
    comparison = Comparison(plan, (Side("before", against), Side("after", HERE)), args.rounds, args.budget_s)
    origin = provenance(arguments + (["--", *flags] if flags else []))
    origin |= {"before": args.before or revision(against), "after": revision(HERE)}
    interrupted = False
    for side in comparison.sides:
        if plan.keys() - BARE:
            side.prepare()
    try:
        for _ in comparison.run():
            if args.json:
                _write(args.json, document(origin, comparison))
            if args.results:
                for name, documents in comparison.documents.items():
                    _write(args.results / f"{name}.json", merged(documents))
    except KeyboardInterrupt:
        interrupted = True
    console = Console(width=140 if not sys.stdout.isatty() else None)
    if comparison.figures:
        console.print(table(list(comparison.figures.values())))
    return 1 if interrupted or comparison.failures else 0


def document(origin: Mapping[str, Any], comparison: Comparison) -> dict[str, Any]:
    """Make the content of the JSON file."""
    figures = []
    for f in comparison.figures.values():
        ratio, low, high = f.ratio()
        figures.append(asdict(f) | {"ratio": ratio, "low": low, "high": high})
    return {**origin, "figures": figures}


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Our arguments, and the benchmark's, which stand behind --."""
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


if __name__ == "__main__":
    sys.exit(main())
