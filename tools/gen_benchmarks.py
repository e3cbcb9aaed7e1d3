"""Writes the tables of docs/benchmarks.md from the JSON files in bench/results.

Usage: python -m tools.gen_benchmarks [--check]

`bench/results/NAME.json` is what `tartlet bench NAME --json` wrote; `pairs.json` is what `python -m bench.pairs` wrote.
The text between the two marks is replaced, the rest of the page is written by hand. The plot of a report is shown if
docs/images has it. `--check` writes nothing. It fails when the page is stale, and when results were measured with
uncommitted changes or on a commit that is no ancestor of HEAD. Without git, or where a shallow clone lacks the commit,
it says that it can't check the commits.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.generated import write_or_check

ROOT = Path(__file__).resolve().parents[1]
PAGE = Path("docs/benchmarks.md")
IMAGES = Path("docs/images")
RESULTS = Path("bench/results")
PAIRS = "pairs"
BEGIN = "<!-- generated from bench/results by `python -m tools.gen_benchmarks`: don't edit -->"
END = "<!-- end of what is generated -->"
COMPARED = frozenset(
    {"ratio", "over device_s", "median ms", "p99 ms", "median us", "us a command", "tokens/s", "CPU us a token", "s"}
)
"""Columns of the published figures; the others of a comparison are in its JSON file."""

Cell = str | float | int
Document = Mapping[str, Any]


def table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Iterator[str]:
    """Lines of a Markdown table."""
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "---|" * len(columns)
    for row in rows:
        yield "| " + " | ".join(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row) + " |"


def goals(documents: Mapping[str, Document]) -> Iterator[str]:
    """The table of all goals, and where each benchmark's numbers come from."""
    rows: list[Sequence[Cell]] = []
    for document in documents.values():
        for report in document["reports"]:
            for goal in report["goals"]:
                value, bound = float(goal["value"]), goal["bound"]
                met = value >= bound if goal["at_least"] else value <= bound
                said = f"at {'least' if goal['at_least'] else 'most'} {bound:.4g}"
                rows.append((report["name"], goal["name"], value, said, "yes" if met else "**no**"))
    yield from table(("benchmark", "what", "measured", "goal", "met"), rows)
    yield ""
    origins = [
        (name, d["commit"], d["date"], " ".join(f"`{flag}`" for flag in shown(d["flags"])), load(d), machine(d))
        for name, d in documents.items()
    ]
    yield from table(("benchmark", "commit", "date", "flags", "load before", "machine"), origins)


def details(documents: Mapping[str, Document], plots: Collection[str] = ()) -> Iterator[str]:
    """Every table of every benchmark, and the plots that are there, by the names of their reports."""
    for report in (report for document in documents.values() for report in document["reports"]):
        if not report["rows"] and report["name"] not in plots:
            continue
        yield ""
        yield f"**{report['name']}**: {report['title']}"
        if report["rows"]:
            yield ""
            yield from table([column or "what" for column in report["columns"]], report["rows"])
        for note in report["notes"]:
            yield ""
            yield note[:1].upper() + note[1:] + "."
        if report["name"] in plots:
            yield ""
            yield f"![{report['title']}]({IMAGES.name}/{report['name']}.svg)"


def pairs(document: Document) -> Iterator[str]:
    """The comparison of two revisions, of the published figures."""
    yield ""
    yield "### Before and after"
    yield ""
    yield f"Measured in turns on {machine(document)}, on {document['date']}, load average {load(document)}."
    yield f"Before is commit {document['before']}, after is {document['after']}."
    yield "The ratio is after / before: the median of the rounds, with its bootstrap interval of 95%."
    yield ""
    rows = [
        (
            f"{f['report']}: {f['row']}, {f['column']}",
            len(f["after"]),
            middle(f["before"]),
            middle(f["after"]),
            f"{f['ratio']:.3f}",
            f"{f['low']:.3f} to {f['high']:.3f}",
        )
        for f in document["figures"]
        if f["column"] in COMPARED or f["report"] == "operator"
    ]
    yield from table(("figure", "rounds", "before", "after", "ratio", "95% interval"), rows)


def shown(flags: Sequence[str]) -> list[str]:
    """Flags without those that say where files go or which round of several a run is."""
    kept, skip = [], False
    for flag in flags:
        if skip or flag in {"--json", "--plot", "--turn"}:
            skip = not skip
        else:
            kept.append(flag)
    return kept


def load(document: Document) -> str:
    """The load average over the minute before a run."""
    return f"{document['load_average'][0]:.1f}"


def machine(document: Document) -> str:
    """The machine of a run."""
    m = document["machine"]
    return f"{m['cpu']}, {m['cores']} cores, Python {m['python']}"


def middle(values: Sequence[float]) -> float:
    """The median."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


def generated(page: str, documents: Mapping[str, Document], compared: Document | None) -> str:
    """The page with its generated part replaced."""
    head, found, rest = page.partition(BEGIN)
    _, ended, tail = rest.partition(END)
    if not found or not ended:
        raise SystemExit(f"{PAGE} lacks the marks {BEGIN} and {END}")
    plots = {path.stem for path in (ROOT / IMAGES).glob("*.svg")}
    lines = [*goals(documents), *details(documents, plots), *(pairs(compared) if compared else ())]
    return f"{head}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{tail}"


def revisions(documents: Mapping[str, Document]) -> Iterator[tuple[str, str]]:
    """Yields each file of results and a commit that it names."""
    for name, document in documents.items():
        for key in ("commit", "before", "after"):
            if key in document:
                yield f"{RESULTS}/{name}.json", document[key]


def bad_origin(commit: str, root: Path) -> str:
    """Says why the results of a commit may not be published; "" if they may, or if the commits can't be checked.

    Args:
        commit: An abbreviated id, with a + if files differed from the commit.
        root: The checkout whose HEAD must have the commit among its ancestors.
    """
    if commit.endswith("+") or commit == "unknown":
        return "measured with uncommitted changes: commit, then measure again"
    if not _git(root, "rev-parse", "HEAD")[0]:
        print("note: the commits of bench/results are not checked: this is no git checkout")
        return ""
    if _git(root, "merge-base", "--is-ancestor", f"{commit}^{{commit}}", "HEAD")[0]:
        return ""
    if _git(root, "rev-parse", "--is-shallow-repository")[1] == "true":
        print(f"note: the commit {commit} of bench/results is not checked: this clone is shallow")
        return ""
    return f"measured on commit {commit}, which is no ancestor of HEAD: measure again"


def _git(root: Path, *args: str) -> tuple[bool, str]:
    """Returns whether git succeeded, and its output."""
    try:
        done = subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return False, ""
    return done.returncode == 0, done.stdout.strip()


def main() -> int:
    """Write or compare the page."""
    documents = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / RESULTS).glob("*.json"))}
    named = list(revisions(documents))
    why = {commit: bad_origin(commit, ROOT) for commit in dict.fromkeys(commit for _, commit in named)}
    refused = [f"{path}: {why[commit]}" for path, commit in named if why[commit]] if "--check" in sys.argv[1:] else []
    for line in dict.fromkeys(refused):
        sys.stderr.write(f"{line}\n")
    compared = documents.pop(PAIRS, None)
    text = generated((ROOT / PAGE).read_text(), documents, compared)
    return write_or_check({PAGE: text}, sys.argv[1:], root=ROOT, command="make generate") or (1 if refused else 0)


if __name__ == "__main__":
    sys.exit(main())
