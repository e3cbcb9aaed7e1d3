"""Writes the chart's Grafana dashboards from their typed definitions.

Usage: python -m tools.gen_dashboards [--check]

`--check` writes nothing and fails when a file is stale.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

from tools.dashboards.board import Board, to_json
from tools.dashboards.doors import GATEWAY, OPERATOR
from tools.dashboards.engines import ENGINES, KV
from tools.dashboards.programs import PROGRAMS, SLO
from tools.generated import write_or_check

BOARDS: Final[tuple[Board, ...]] = (PROGRAMS, SLO, ENGINES, KV, GATEWAY, OPERATOR)
FOLDER: Final = Path("charts/tartlet/files/dashboards")


def files() -> dict[Path, str]:
    """Return the text of each dashboard's file."""
    return {FOLDER / f"{board.uid}.json": json.dumps(to_json(board), indent=2) + "\n" for board in BOARDS}


if __name__ == "__main__":
    root = Path(__file__).resolve().parent.parent
    sys.exit(write_or_check(files(), sys.argv[1:], root=root, command="python -m tools.gen_dashboards"))
