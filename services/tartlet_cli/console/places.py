"""Finds the checkout, its demo model, the engine and model that a command uses, and what earlier runs have left."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tartlet_common.errors.registry import CheckpointMissing

CHECKOUT = Path(__file__).resolve().parents[3]
DEMO_MODEL = CHECKOUT / "models" / "demo"
_LOGS_KEPT = 5  # directories of logs, of runs in which the system failed


class WorkerChoice(NamedTuple):
    """The engine and model that the command line chooses for the worker; None: the worker's settings decide."""

    engine: str | None
    model: Path | None


def backend(engine: str | None, model: str | None, config: Path | None) -> WorkerChoice:
    """Choose the worker's engine and model.

    Flags override the worker's environment and file, and these override $TARTLET_MODEL and the demo model.

    Raises:
        CheckpointMissing: the engine would be torch, and there is no checkpoint.
        InvalidConfig: the worker's file or environment has a mistake.
    """
    if engine == "fake":
        return WorkerChoice(engine, None)
    if config is not None or any(name.startswith("TARTLET_WORKER_") for name in os.environ):
        from tartlet_common.config.load import load  # the import takes a tenth of a second, which most starts save
        from tartlet_common.config.settings import WorkerSettings

        set_ = load(WorkerSettings, "worker", file=config, env=os.environ).settings
        if model is None and (set_.model or (engine or set_.engine) == "fake"):
            return WorkerChoice(engine, None)
        engine = engine or ("torch" if model else None)
    return WorkerChoice(engine, find_model(model))


def http_flags(hosts: Sequence[str]) -> dict[str, list[str]]:
    """Return the flags of a stack's runtime whose programs may ask these hosts.

    Whoever starts a stack is its administrator. So an address of this machine or of a private network that they name
    may be reached, and a name may not stand for one.

    Example:
        >>> http_flags(["api.example.org", "localhost:8080"])["runtime"]
        ['--http-hosts', 'api.example.org,localhost:8080', '--http-private-hosts', 'localhost:8080']
    """
    if not hosts:
        return {}
    from tartlet_common.egress.hosts import own_addresses

    flags = ["--http-hosts", ",".join(hosts)]
    if private := own_addresses(hosts):
        flags += ["--http-private-hosts", ",".join(private)]
    return {"runtime": flags}


def find_model(given: str | None) -> Path:
    """Return the checkpoint's directory: the given one, else $TARTLET_MODEL, else the checkout's demo model.

    Raises:
        CheckpointMissing: that directory holds no checkpoint.
    """
    chosen = given or os.environ.get("TARTLET_MODEL")
    path = Path(chosen).expanduser() if chosen else DEMO_MODEL
    if not (path / "config.json").is_file():
        detail = "no config.json there" if path.is_dir() else "no such directory"
        raise CheckpointMissing(path=str(path), detail=detail)
    return path.resolve()


def sweep(base: Path) -> None:
    """Remove directories that killed runs have left."""
    for directory in base.glob("run-*-*"):
        pid = directory.name.split("-")[1]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(directory, ignore_errors=True)


def keep_newest(logs: Iterable[Path]) -> None:
    """Remove all but the newest few directories of logs; another run may be at it, too."""
    aged = []
    for path in logs:
        with contextlib.suppress(OSError):
            aged.append((path.stat().st_mtime, path))
    for _, path in sorted(aged)[:-_LOGS_KEPT]:
        shutil.rmtree(path, ignore_errors=True)
