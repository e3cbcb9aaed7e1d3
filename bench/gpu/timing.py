"""Times work on a device."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from bench.harness.intervals import median


def seconds(call: Callable[[], object], device: str, times: int = 7) -> float:
    """Return the median seconds of a call, from an idle device to an idle device, after one that warms up."""
    took = []
    for _ in range(times + 1):
        _wait(device)
        start = time.perf_counter()
        call()
        _wait(device)
        took.append(time.perf_counter() - start)
    return median(took[1:])


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
