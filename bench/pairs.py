"""Compare this checkout with another one: the same benchmark in both, alternately, figure by figure.

A round runs the benchmark once in each checkout, each with its own `.venv`; the rounds take turns in which checkout
goes first. The ratio of a figure is the median over the rounds of after / before, with a bootstrap interval of 95%:
"before" is the other checkout, "after" is this one. `all` runs a short form of every benchmark in turn, round by
round, until the time budget is spent.

  python -m bench.pairs control --against ../before --rounds 8 -- --programs 32
  python -m bench.pairs launch --against ../before --rounds 3 -- --repeat 1
  python -m bench.pairs all --against ../before --budget-s 1500 --json pairs.json
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
from bench.harness.provenance import provenance, revision

HERE: Final = Path(__file__).resolve().parents[1]
QUICK: Final[Mapping[str, Sequence[str]]] = {
    "control": ["--repeat", "3"],
    "calls": ["--repeat", "2"],
    "launch": ["--repeat", "2"],
    "overhead": ["--repeat", "1"],
    "engine": ["--repeat", "2"],
    "batching": ["--repeat", "1"],
}
"""The benchmarks of `all`, with flags that make each of them short."""

Figures = dict[tuple[str, str, str], float]  # (report, row, column) -> value


class Side(NamedTuple):
    """One of the two checkouts."""

    name: str  # before or after
    checkout: Path

    def run(self, benchmark: str, flags: Sequence[str]) -> Figures:
        """Run one benchmark there.

        Raises:
            BenchmarkFailed: it ended with an error; says how.
        """
        python = self.checkout / ".venv" / "bin" / "python"
        env = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "VIRTUAL_ENV"}}
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
            return figures(json.loads(numbers.read_text()))


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


def figures(document: Mapping[str, Any]) -> Figures:
    """Every measured number of a benchmark's JSON: the leading texts and whole numbers of a row are its label."""
    found: Figures = {}
    for report in document["reports"]:
        columns = report["columns"]
        for row in report["rows"]:
            labels = 1
            while labels < len(row) and isinstance(row[labels], str | int):
                labels += 1
            label = ", ".join(str(cell) for cell in row[:labels])
            for column, cell in zip(columns[labels:], row[labels:], strict=True):
                if isinstance(cell, int | float) and not column.startswith("goal"):
                    found[report["name"], label, column] = float(cell)
    return found


def compare(
    plan: Mapping[str, Sequence[str]], sides: tuple[Side, Side], rounds: int, budget_s: float
) -> Iterator[list[Figure]]:
    """Run every benchmark of `plan` in both checkouts, round by round; yields all figures after each benchmark.

    A benchmark is not begun again when its last round took longer than what is left of `budget_s`.
    """
    seen: dict[tuple[str, str, str, str], Figure] = {}
    took_s: dict[str, float] = {}
    started = time.monotonic()
    for i in range(rounds):
        for benchmark, flags in plan.items():
            begun = time.monotonic()
            if begun - started + took_s.get(benchmark, 0.0) > budget_s:
                continue
            found = {side.name: side.run(benchmark, flags) for side in (sides if i % 2 == 0 else sides[::-1])}
            took_s[benchmark] = time.monotonic() - begun
            for key in found["after"].keys() & found["before"].keys():
                figure = seen.setdefault((benchmark, *key), Figure(benchmark, *key))
                figure.before.append(found["before"][key])
                figure.after.append(found["after"][key])
            sys.stderr.write(f"pairs: round {i + 1} of {rounds}, {benchmark}: {took_s[benchmark]:.0f} s\n")
            order = {key: n for n, key in enumerate(found["after"])}
            yield sorted(
                seen.values(), key=lambda f: (list(plan).index(f.benchmark), order.get((f.report, f.row, f.column), 0))
            )


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
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.pairs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("benchmark", metavar="NAME", help=f"what `tartlet bench` calls it, or all: {', '.join(QUICK)}")
    parser.add_argument("--against", type=Path, required=True, metavar="DIR", help="the other checkout, with its .venv")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="pairs (default %(default)s)")
    parser.add_argument(
        "--budget-s", type=float, default=float("inf"), metavar="S", help="begin nothing that ends later"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, after every benchmark")
    arguments, flags = _split(sys.argv[1:])
    args = parser.parse_args(arguments)
    against = args.against.resolve()
    if not (against / ".venv" / "bin" / "python").exists():
        parser.error(f"{against} has no .venv/bin/python: run `make setup` there")
    plan = (
        {name: [*quick, *flags] for name, quick in QUICK.items()}
        if args.benchmark == "all"
        else {args.benchmark: flags}
    )
    sides = (Side("before", against), Side("after", HERE))
    found: list[Figure] = []
    began = provenance(arguments + (["--", *flags] if flags else []))
    status = 0
    try:
        for found in compare(plan, sides, args.rounds, args.budget_s):
            if args.json:
                document = began | {"before": revision(against), "after": revision(HERE), "figures": []}
                for f in found:
                    ratio, low, high = f.ratio()
                    document["figures"].append(asdict(f) | {"ratio": ratio, "low": low, "high": high})
                args.json.write_text(json.dumps(document, indent=1) + "\n")
    except (BenchmarkFailed, KeyboardInterrupt) as error:
        sys.stderr.write(f"{error}\n")
        status = 1
    console = Console(width=140 if not sys.stdout.isatty() else None)
    if found:
        console.print(table(found))
    return status


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Our arguments, and the benchmark's, which stand behind --."""
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


if __name__ == "__main__":
    sys.exit(main())
