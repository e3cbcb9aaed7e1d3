"""`python -m tartlet_gateway`: the gateway role as a process."""

from __future__ import annotations

import sys

from tartlet_common.config.settings import GatewaySettings
from tartlet_common.process.role import run_role
from tartlet_gateway.app import main

if __name__ == "__main__":
    sys.exit(run_role("gateway", GatewaySettings, main))
