"""From the shell to the first token of `tartlet run` on the demo model, and where that time goes.

Each start is a new process, as a user's is. The rows: the whole command until the first byte of the program's output;
then the stages of a start of the same stack inside a process that is imported already, by role, as the roles tell them;
then the imports that take longest in each role. Imports are timed by the interpreter itself, which slows them by a
tenth, and with every role alone.

A machine whose files are not in memory yet takes longer: the first start is a row of its own, "first".
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from bench.harness import report
from bench.harness.intervals import median
from tartlet.local import LocalStack, Progress, StackConfig, StackEvent, Started

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "inferlets" / "std" / "text_completion.py"
GOAL_S = 2.0
IMPORTED = {
    "command line": "tartlet_cli.main, tartlet.local",
    "control": "tartlet_control.app",
    "runtime": "tartlet_runtime.app",
    "worker": "tartlet_worker.app, torch",
}
SHOWN = 4
"""Packages of each role in the table of imports."""


def first_token_s(model: Path) -> float:
    """Run the command once; seconds from its start to the first byte of the program's output."""
    args = ["run", "--quiet", "--model", str(model), str(PROGRAM), "--prompt", "374+588=", "--max-tokens", "8"]
    started = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "tartlet_cli", *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        took_s = time.perf_counter() - started
        process.stdout.read()
    if process.returncode or not first:
        raise RuntimeError(f"tartlet run ended with {process.returncode}")
    return took_s


async def stages_s(model: Path) -> dict[str, float]:
    """Start a stack once; seconds from the beginning to each stage that a role tells, and to its readiness."""
    directory = Path(tempfile.mkdtemp(prefix="tt-"))
    seen: dict[str, float] = {}
    begun = time.perf_counter()

    def told(event: StackEvent) -> None:
        at_s = time.perf_counter() - begun
        if isinstance(event, Progress):
            seen.setdefault(f"{event.role}: {event.text}", at_s)
        elif isinstance(event, Started):
            seen[f"{event.role}: serves"] = at_s

    try:
        async with LocalStack(StackConfig(engine="torch", model=model, directory=directory), told):
            return seen
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def imports_ms(modules: str) -> dict[str, float]:
    """Milliseconds of importing each top-level package that `modules` need, without what it imports itself."""
    done = subprocess.run(
        [sys.executable, "-P", "-X", "importtime", "-c", f"import {modules}"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": ""},
    )  # fmt: skip
    spent: dict[str, float] = defaultdict(float)
    for line in done.stderr.splitlines():
        _, found, rest = line.partition("import time:")
        own_us, _, name = (part.strip() for part in rest.replace("|", " | ").split("|")) if found else ("", "", "")
        if own_us.isdigit():
            spent[name.split(".")[0]] += int(own_us) / 1e3
    return spent


def measure(model: Path, repeat: int) -> list[report.Report]:
    """Make the three tables."""
    report.progress("start: the first one")
    first_s = first_token_s(model)
    whole: list[float] = []
    stages: dict[str, list[float]] = {}
    for i in range(repeat):
        report.progress(f"start: {i + 1} of {repeat}")
        whole.append(first_token_s(model))
        for stage, at_s in asyncio.run(stages_s(model)).items():
            stages.setdefault(stage, []).append(at_s)
    start = report.Report("start", "From the shell to the first token of `tartlet run`", ["start", "s", "goal s"])
    start.rows = [("median", median(whole), GOAL_S), ("slowest", max(whole), ""), ("first", first_s, "")]
    start.goals = [report.Goal("shell to first token, s", median(whole), GOAL_S, at_least=False)]
    by_role = report.Report("start-stages", "Stages of a start: seconds from its beginning", ["stage", "begins at s"])
    by_role.rows = sorted(((stage, median(at)) for stage, at in stages.items()), key=lambda row: row[1])
    imports = report.Report("start-imports", "Imports, each role alone", ["role and package", "ms"])
    for role, modules in IMPORTED.items():
        spent = imports_ms(modules)
        imports.rows.append((f"{role}: all", sum(spent.values())))
        slowest = sorted(spent.items(), key=lambda item: -item[1])[:SHOWN]
        imports.rows += [(f"{role}: {package}", ms) for package, ms in slowest]
    return [start, by_role, imports]


def main() -> int:
    """Run the command line."""
    parser = report.parser("start", __doc__, plots=False)
    parser.add_argument(
        "--model", type=Path, default=ROOT / "models" / "demo", metavar="DIR", help="checkpoint (default: demo model)"
    )
    args = parser.parse_args()
    return report.emit(measure(args.model, args.repeat), args)


if __name__ == "__main__":
    sys.exit(main())
