"""Lets a process of a test tell, on SIGUSR2, how many asyncio tasks it has. Python imports this at its start."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path


def _tell(*_: object) -> None:
    told = Path(os.environ["TARTLET_TEST_TASKS"])
    made = told.with_suffix(".new")
    made.write_text("\n".join(sorted(str(task.get_coro()) for task in asyncio.all_tasks())))
    made.replace(told)


if "TARTLET_TEST_TASKS" in os.environ:
    signal.signal(signal.SIGUSR2, _tell)
