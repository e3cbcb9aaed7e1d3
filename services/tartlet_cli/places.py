"""Where things are: the demo model, benchmarks and templates of the checkout."""

from __future__ import annotations

import os
from pathlib import Path

from tartlet_common.errors import CheckpointMissing

CHECKOUT = Path(__file__).resolve().parents[2]
DEMO_MODEL = CHECKOUT / "models" / "demo"


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
