"""`python -m tartlet_runtime`: the runtime role as a process."""

from __future__ import annotations

import gc
import sys

from tartlet_common.config.settings import RuntimeSettings
from tartlet_common.process.role import run_role
from tartlet_runtime.app import main

if __name__ == "__main__":
    # Collect cycles seldom: a burst of launches allocates much, keeps it, and makes no cycles worth looking for. The
    # idle moments between bursts are for that (`app`).
    gc.set_threshold(400_000, 20, 50)
    sys.exit(run_role("runtime", RuntimeSettings, main))
