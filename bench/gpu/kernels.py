"""Builds FlashInfer's modules on the GPU machine while the proof's first steps run.

A module that the bundle brings isn't built again. No step of the proof compiles one by itself, because that takes
longer than a step may: a step takes the modules that are there when it starts. Imports the standard library alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.gpu.paths import NO_BUILDS, ROOT

NAME: Final = "kernels"
_TAIL: Final = 4000
_BUILD: Final = ("-m", "tartlet_worker.attention.flashinfer_build")


class Kernels:
    """The build, in a process group of its own."""

    def __init__(self, work: Path, env: Mapping[str, str], command: tuple[str, ...] = _BUILD) -> None:
        """Start it.

        Args:
            work: takes the record `kernels.json` and the log.
            env: of the proof's steps.
            command: of Python; it prints a line for each module.
        """
        self._work, self._begun, self._ended_s = work, time.monotonic(), 0.0
        self._log = work / f"{NAME}.log"
        cores = os.cpu_count() or 1
        mine = {key: value for key, value in env.items() if key != NO_BUILDS}
        mine |= {"MAX_JOBS": str(max(1, cores // 4)), "FLASHINFER_WORKSPACE_BASE": env["TARTLET_GPU_SCRATCH"]}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, *command, *(("--jobs", "4") if command == _BUILD else ())],
                cwd=ROOT, env=mine, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                preexec_fn=_behind,  # noqa: PLW1509 - the runner has one thread
            )  # fmt: skip

    def running(self) -> bool:
        """Return whether it goes on; steps that measure share the machine with it then."""
        return self._process.poll() is None

    def wait(self, most_s: float) -> None:
        """Wait for its end, at most so long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(most_s)

    def record(self) -> dict[str, Any]:
        """Write what it has built so far, and return that."""
        ended = self._process.poll()
        if ended is not None and not self._ended_s:
            self._ended_s = time.monotonic() - self._begun
        text = self._log.read_text(errors="replace")
        outcome = "running" if ended is None else "failed" if ended else "passed"
        told: dict[str, Any] = {
            "step": NAME,
            "outcome": outcome,
            "data": {"built": [line for line in text.splitlines() if " bytes" in line]},
            "wall_s": round(self._ended_s or time.monotonic() - self._begun, 2),
        }
        if outcome == "failed":
            told |= {"reason": f"it ended with {ended}", "log": text[-_TAIL:]}
        (self._work / f"{NAME}.json").write_text(json.dumps(told, indent=1) + "\n")
        return told

    def stop(self) -> dict[str, Any]:
        """End it, and all compilers that it started; return its last record."""
        late = self.running()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        told = self.record()
        if late:
            told |= {"outcome": "timeout", "reason": "the proof ended before it did"}
            (self._work / f"{NAME}.json").write_text(json.dumps(told, indent=1) + "\n")
        return told


def _behind() -> None:
    os.nice(19)
