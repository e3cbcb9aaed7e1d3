"""Starts the proof where nothing is installed: `python3 bench/gpu/start.py`, which `make gpu-proof` runs."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

if __name__ == "__main__":
    # `bench` names gRPC's settings when it is imported, which are `tartlet_common`'s.
    sys.path[0:1] = [str(ROOT), str(ROOT / "services")]
    from bench.gpu.proof import main

    sys.exit(main())
