"""A worker that first measures its engine by the bare loop, so that a model is loaded once for both measurements.

`TARTLET_BENCH_BARE` names a JSON file that says what to measure (`Request`). The answer goes to the same name with
`.answer`: seconds an output token, by number of programs. Then the worker serves.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

from bench.engine_loop import BareLoop
from bench.harness.intervals import median
from bench.product.common import WorkerSettings, run_role
from bench.product.worker import Engine, app

REQUEST: Final = "TARTLET_BENCH_BARE"
"""The variable that names the file."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to measure."""

    programs: tuple[int, ...]  # numbers of rows
    prompt: int  # tokens
    new: int  # tokens
    rounds: int

    def write(self, file: Path) -> dict[str, str]:
        """Write the request; return the worker's environment."""
        file.write_text(json.dumps(asdict(self)))
        return {REQUEST: str(file)}


def answer(file: Path) -> dict[int, float]:
    """Return the seconds an output token, by number of programs, that a worker measured for a request's file."""
    found = json.loads(file.with_suffix(".answer").read_text())
    return {int(count): float(seconds) for count, seconds in found.items()}


def measure(engine: Engine, request: Request) -> dict[int, float]:
    """Return the seconds an output token of the bare loop, by number of rows; the engine is as new afterwards."""
    prompt, found = [10 + i * 7 % 200 for i in range(request.prompt)], {}
    for count in request.programs:
        loop = BareLoop(engine, count, request.prompt, request.new)
        loop.run([prompt] * count)
        found[count] = median([loop.run([prompt] * count).per_token_s for _ in range(request.rounds)])
    engine.reset()
    return found


def load_and_measure(file: Path, settings: WorkerSettings, progress: Callable[[str], None]) -> Engine:
    """Load the engine that the settings ask for, and answer the request."""
    engine = app.load(settings, progress)
    progress("measuring the bare loop")
    found = measure(engine, Request(**json.loads(file.read_text())))
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps(found))
    fresh.replace(file.with_suffix(".answer"))
    return engine


if __name__ == "__main__":
    load = partial(load_and_measure, Path(os.environ[REQUEST]))
    code = run_role("worker", WorkerSettings, partial(app.main, load=load))
    logging.shutdown()
    os._exit(code)  # as a worker itself ends
