"""`python -m tartlet_control`: queues, batches, tables."""

from __future__ import annotations

import sys

from tartlet_common.config.settings import ControlSettings
from tartlet_common.process.role import run_role
from tartlet_control.app import calm_collector, main

if __name__ == "__main__":
    calm_collector()
    sys.exit(run_role("control", ControlSettings, main))
