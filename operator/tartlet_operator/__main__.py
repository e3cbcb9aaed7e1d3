"""`python -m tartlet_operator`: the operator role as a process."""

from __future__ import annotations

import gc
import sys
from typing import Final

_DEEPEST: Final = 30_000
"""The API server takes JSON that nests 10,000 levels, in managedFields say, and one such object must not end kopf's
watches: reading a level takes one level of recursion, copying it two."""


def main() -> int:
    """Run the role to its end; the exit code."""
    # kopf imports these clients where they are installed, to look for credentials: 76 MB for what access.py does
    for client in ("kubernetes", "pykube"):
        sys.modules[client] = None  # type: ignore[assignment]
    from tartlet_common.config.settings import OperatorSettings
    from tartlet_common.process.role import run_role
    from tartlet_operator.app import main as operate

    sys.setrecursionlimit(_DEEPEST)
    gc.collect()
    gc.freeze()  # what the imports made stays: collections needn't look through it
    gc.set_threshold(10_000, 20, 50)
    # uvloop loses count of sockets that aiohttp closes while they connect, and refuses their numbers later
    # (MagicStack/uvloop#653): after a restart of the API server that ended kopf's watches
    return run_role("operator", OperatorSettings, operate, uvloop=False)


if __name__ == "__main__":
    sys.exit(main())
