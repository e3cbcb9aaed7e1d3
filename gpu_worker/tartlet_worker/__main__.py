"""`python -m tartlet_worker`: runs a worker, which serves one engine to control."""

from __future__ import annotations

import logging
import os

from tartlet_common.config.settings import WorkerSettings
from tartlet_common.process.role import run_role
from tartlet_worker.app import main

if __name__ == "__main__":
    code = run_role("worker", WorkerSettings, main)
    logging.shutdown()
    os._exit(code)  # everything is closed; unloading torch's modules would double the time of a stop
