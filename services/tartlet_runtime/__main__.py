"""`python -m tartlet_runtime`: the runtime role as a process."""

from __future__ import annotations

import gc
import sys

from tartlet_common.process import run_role
from tartlet_common.settings import RuntimeSettings
from tartlet_runtime.app import main

if __name__ == "__main__":
    # Collect cycles seldom: a burst of launches allocates much, keeps it, and makes no cycles worth looking for.
    gc.set_threshold(50_000, 20, 50)
    sys.exit(run_role("runtime", RuntimeSettings, main))
