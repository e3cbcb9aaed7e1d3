"""Finds out whether a device exists, and how much memory it has left.

Pools that don't fit are refused before anything is allocated. Linux grants more memory than it has, and ends processes
when the memory is used: an engine that touches its whole pool could end other processes of the machine.
"""

from __future__ import annotations

import gc
from pathlib import Path

import psutil
import torch

from tartlet_common.errors.registry import InvalidConfig, OutOfDeviceMemory

_CGROUPS = (  # limit and use of the memory of this process's container, by version of cgroups
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)


def check_device(device: str) -> None:
    """Find out whether this machine's torch can use `device`.

    Raises:
        InvalidConfig: the name is no device's, the machine has no such device, or torch was built without it.
    """
    kind, _, number = device.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()):
        raise InvalidConfig(role="worker", detail=f"device {device!r}: give cpu, cuda or cuda:NUMBER")
    if kind == "cuda":
        there = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(number or 0) >= there:
            built = "" if torch.version.cuda else "; this torch was built without CUDA"
            detail = f"device {device!r}: no such device here ({there} GPUs{built})"
            remedy = (
                "Unset TARTLET_WORKER_DEVICE, or set it to cpu. Where a GPU should be, `tartlet doctor` tells more."
            )
            raise InvalidConfig(role="worker", detail=detail, remedy=remedy)


def use_device(device: str) -> None:
    """Make a GPU with a number this thread's current one: Triton launches, events and graphs are the current one's."""
    if device.startswith("cuda:"):
        torch.cuda.set_device(torch.device(device))


def free_bytes(device: str) -> int:
    """Return how many bytes an engine may still allocate on `device`."""
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    return min(psutil.virtual_memory().available, *(_left(limit, used) for limit, used in _CGROUPS))


def give_back_memory(device: str) -> None:
    """Give a GPU back what tensors that are gone have left in torch's cache; wait for the GPU first.

    Raises:
        RuntimeError: the GPU doesn't compute any more, or torch can't give memory back.
    """
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.zeros(1, device=device).add_(1).item()


def checked_room(device: str, asked: int) -> int:
    """Return how many bytes are free on the device.

    Raises:
        OutOfDeviceMemory: fewer than `asked`.
    """
    free = free_bytes(device)
    if asked > free:
        raise OutOfDeviceMemory(device=device, asked_bytes=asked, free_bytes=free)
    return free


def _left(limit: Path, used: Path) -> int:
    """Return the bytes that a cgroup's limit leaves; without a limit, more than any machine has."""
    try:
        return int(limit.read_text()) - int(used.read_text())
    except (OSError, ValueError):  # no such version here, or "max"
        return 1 << 62
