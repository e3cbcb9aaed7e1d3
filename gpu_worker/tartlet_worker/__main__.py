"""`python -m tartlet_worker`: one engine, served to control."""

from __future__ import annotations

import sys

from tartlet_common.process import run_role
from tartlet_common.settings import WorkerSettings
from tartlet_worker.app import main

if __name__ == "__main__":
    sys.exit(run_role("worker", WorkerSettings, main))
