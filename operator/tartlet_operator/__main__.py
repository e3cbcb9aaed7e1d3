"""`python -m tartlet_operator`: the operator role as a process."""

from __future__ import annotations

import sys

from tartlet_common.process import run_role
from tartlet_common.settings import OperatorSettings
from tartlet_operator.app import main

if __name__ == "__main__":
    sys.exit(run_role("operator", OperatorSettings, main))
