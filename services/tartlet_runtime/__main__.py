"""`python -m tartlet_runtime`: the runtime role as a process."""

from __future__ import annotations

import sys

from tartlet_common.process import run_role
from tartlet_common.settings import RuntimeSettings
from tartlet_runtime.app import main

if __name__ == "__main__":
    sys.exit(run_role("runtime", RuntimeSettings, main))
