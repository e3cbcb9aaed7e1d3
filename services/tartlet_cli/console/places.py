"""Where things are: the demo model, benchmarks and templates of the checkout."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from tartlet_common.errors.registry import CheckpointMissing

CHECKOUT = Path(__file__).resolve().parents[3]
DEMO_MODEL = CHECKOUT / "models" / "demo"


class WorkerChoice(NamedTuple):
    """What a command line decides about the worker; None: the worker's own settings do."""

    engine: str | None
    model: Path | None


def backend(engine: str | None, model: str | None, config: Path | None) -> WorkerChoice:
    """What the worker is told: flags beat its environment and file, and those beat $TARTLET_MODEL and the demo model.

    Raises:
        CheckpointMissing: it would run torch, and there is no checkpoint.
        InvalidConfig: its file or its environment is wrong.
    """
    if engine == "fake":
        return WorkerChoice(engine, None)
    if config is not None or any(name.startswith("TARTLET_WORKER_") for name in os.environ):
        from tartlet_common.config.load import load  # takes a tenth of a second, which most starts can save
        from tartlet_common.config.settings import WorkerSettings

        set_ = load(WorkerSettings, "worker", file=config, env=os.environ).settings
        if model is None and (set_.model or (engine or set_.engine) == "fake"):
            return WorkerChoice(engine, None)
        engine = engine or ("torch" if model else None)
    return WorkerChoice(engine, find_model(model))


def find_model(given: str | None) -> Path:
    """The checkpoint directory: as given, else $TARTLET_MODEL, else the checkout's demo model.

    Raises:
        CheckpointMissing: there is none.
    """
    chosen = given or os.environ.get("TARTLET_MODEL")
    path = Path(chosen).expanduser() if chosen else DEMO_MODEL
    if not (path / "config.json").is_file():
        detail = "no config.json there" if path.is_dir() else "no such directory"
        raise CheckpointMissing(path=str(path), detail=detail)
    return path.resolve()
