"""Proves the GPU path on one card, offline, in at most ten minutes: `make gpu-proof`.

Each step is a process with a time limit, and writes one JSON file. A step that fails, hangs or is skipped doesn't stop
the next one. After each step the archive `gpu-proof.tar.gz` is written anew, so it is there however the run ends.

`--keep ARCHIVE` puts an archive that came back from a GPU machine into `bench/results/CARD`. Imports the standard
library alone, so that it runs where nothing is installed (`start`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.gpu.kernels import Kernels
from bench.gpu.paths import BUNDLE, ROOT, environment, unpack, unusable
from bench.gpu.plan import REHEARSAL, STEPS, TOTAL_S, Step, limit_of

ARCHIVE = "gpu-proof.tar.gz"
KERNELS_WAIT_S = 60
"""How long the step that needs FlashInfer's modules is put off while they are built."""
_TAIL = 4000


def say(text: str) -> None:
    """Write one line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run_step(step: Step, limit_s: float, out: Path, env: dict[str, str], options: Sequence[str]) -> dict[str, Any]:
    """Run a step in a process group of its own, which ends with it; return its record, which is also in a file."""
    file = out / f"{step.name}.json"
    file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "bench.gpu.step", step.name, "--out", str(out)]
    start = time.monotonic()
    log = (out / f"{step.name}.log").open("w+b")
    with log:
        process = subprocess.Popen(
            [*command, *options], cwd=ROOT, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            ended = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            ended = None
        finally:
            _end_group(process)
        log.seek(0)
        tail = log.read()[-_TAIL:].decode(errors="replace")
    record: dict[str, Any] = {"step": step.name, "outcome": "failed", "data": {}}
    if file.exists():
        record |= json.loads(file.read_text())
    if ended is None:
        record |= {"outcome": "timeout", "reason": f"it took longer than {limit_s:.0f} s"}
    elif ended != 0:
        record |= {
            "outcome": "failed",
            "reason": record.get("reason") or f"its process ended with {ended}",
            "log": tail,
        }
    record |= {"wall_s": round(time.monotonic() - start, 2), "limit_s": limit_s}
    file.write_text(json.dumps(record, indent=1) + "\n")
    return record


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a step's process and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def prove(
    steps: Sequence[Step], out: Path, *, rehearse: bool, without_flashinfer: bool = False, total_s: float = TOTAL_S
) -> list[dict[str, Any]]:
    """Run steps in order; return their records."""
    flags = {"--rehearse": rehearse, "--without-flashinfer": without_flashinfer}
    options = [flag for flag, given in flags.items() if given]
    begun = time.monotonic()
    work = out / "steps"
    work.mkdir(parents=True, exist_ok=True)
    records = []
    kernels: Kernels | None = None
    if why_not := unusable():
        say(why_not)
    scratch = Path(tempfile.mkdtemp(prefix="tartlet-gpu-", dir=_roomy()))
    try:
        env = environment(os.environ, scratch, unpack(BUNDLE, scratch), rehearse=rehearse)
        if not rehearse and not without_flashinfer and any(step.needs_kernels for step in steps):
            kernels = Kernels(work, env)
        for step in steps:
            if kernels is not None and step.needs_kernels:
                kernels.wait(min(KERNELS_WAIT_S, max(0.0, total_s - (time.monotonic() - begun) - step.limit_s)))
            shared = kernels is not None and kernels.running()
            limit_s = limit_of(step, time.monotonic() - begun, total_s, REHEARSAL if rehearse else 1)
            if limit_s:
                record = run_step(step, limit_s, work, env, options)
            else:
                record = {"step": step.name, "outcome": "skipped", "reason": "no time is left", "data": {}}
            if shared:
                record["beside_a_build"] = True  # its times are longer for that
            (work / f"{step.name}.json").write_text(json.dumps(record, indent=1) + "\n")
            records.append(record)
            _tell(record)
            if kernels is not None:
                kernels.record()
            pack(work, out / ARCHIVE)
    finally:
        if kernels is not None:
            _tell(kernels.stop())
            pack(work, out / ARCHIVE)
        shutil.rmtree(scratch, ignore_errors=True)
    return records


def _tell(record: dict[str, Any]) -> None:
    reason = f": {record['reason']}" if record.get("reason") else ""
    say(f"{record['step']:<11} {record['outcome']:<8} {record.get('wall_s', 0):6.1f} s{reason}")


def _roomy() -> str | None:
    """Return a directory in memory with room for two checkpoints, or None for the usual temporary one."""
    shared = Path("/dev/shm")  # noqa: S108 - a directory that `mkdtemp` makes is private
    return str(shared) if shared.is_dir() and shutil.disk_usage(shared).free > 40 << 30 else None


def pack(work: Path, archive: Path) -> None:
    """Write all JSON files, logs and plots into one archive."""
    fresh = archive.with_suffix(".new")
    with tarfile.open(fresh, "w:gz") as packed:
        for file in sorted(work.rglob("*")):
            if file.is_file() and file.suffix in {".json", ".png", ".svg", ".log"}:
                packed.add(file, arcname=str(file.relative_to(work)))
    fresh.replace(archive)


def slug(card: str) -> str:
    """Return the name of a card's folder.

    Example:
        >>> slug("NVIDIA H100 80GB HBM3"), slug("cpu (rehearsal)")
        ('h100-80gb-hbm3', 'cpu-rehearsal')
    """
    return re.sub(r"[^a-z0-9]+", "-", card.lower().removeprefix("nvidia ")).strip("-") or "unknown"


def keep(archive: Path, results: Path) -> Path:
    """Unpack an archive into the folder of its card; return the folder."""
    with tempfile.TemporaryDirectory() as directory:
        with tarfile.open(archive) as packed:
            packed.extractall(directory, filter="data")
        said = json.loads(Path(directory, "preflight.json").read_text())
        target = results / slug(str(said["data"].get("card", "unknown")))
        target.mkdir(parents=True, exist_ok=True)
        for file in Path(directory).iterdir():
            if file.suffix in {".json", ".png", ".svg"}:
                shutil.copy(file, target / file.name)
    return target


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 1 if a step failed or ran out of time."""
    parser = argparse.ArgumentParser(prog="make gpu-proof", description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-proof", help="where the archive goes")
    parser.add_argument("--step", action="append", choices=[s.name for s in STEPS], help="only this one (repeatable)")
    parser.add_argument("--rehearse", action="store_true", help="run on the CPU, with tiny shapes")
    parser.add_argument(
        "--without-flashinfer", action="store_true", help="let FlashInfer's step be skipped where FlashInfer is missing"
    )
    parser.add_argument("--minutes", type=float, help="of the whole run (default 10, and 120 to rehearse)")
    parser.add_argument("--keep", type=Path, metavar="ARCHIVE", help="put an archive into bench/results, run nothing")
    args = parser.parse_args(argv)
    if args.keep:
        say(str(keep(args.keep, ROOT / "bench" / "results")))
        return 0
    steps = [s for s in STEPS if not args.step or s.name in args.step]
    total_s = 60 * args.minutes if args.minutes else TOTAL_S * (REHEARSAL if args.rehearse else 1)
    records = prove(
        steps, args.out, rehearse=args.rehearse, without_flashinfer=args.without_flashinfer, total_s=total_s
    )
    say(f"archive: {args.out / ARCHIVE}")
    return int(any(record["outcome"] in {"failed", "timeout"} for record in records))


if __name__ == "__main__":
    sys.exit(main())
