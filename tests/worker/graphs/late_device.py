"""A device whose answers reach the host only when the host waits for them, on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tartlet_worker import transfers as transfers_module
from tartlet_worker.torch_engine.engine import TorchEngine

UNREAD = -7
"""What pinned memory holds until a copy into it has ended."""


class Device:
    """A device whose answers reach the host when somebody waits for them, or when the test lets them."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.copies: list[Callable[[], Any]] = []
        self.arrived = 0
        self.breaks_at = 0  # waiting for this answer fails
        self.polls: int | None = None  # after so many looks all answers have arrived; None: never by itself

    def arrive(self, until: int) -> None:
        for copy in self.copies[self.arrived : until]:
            copy()
        self.arrived = max(self.arrived, until)


@contextmanager
def device_of(engine: TorchEngine) -> Iterator[Device]:
    """Let the answers of an engine on the CPU travel as they do from a device."""
    device, transfers, copy, empty = Device(), engine.pools.transfers, torch.Tensor.copy_, torch.empty

    class Event:
        at = 0

        def record(self) -> None:
            self.at = len(device.copies)

        def query(self) -> bool:
            if device.polls is not None:
                device.polls -= 1
                if device.polls < 0:
                    device.polls = 3
                    device.arrive(len(device.copies))
            return device.arrived >= self.at

        def synchronize(self) -> None:
            if not self.query():
                device.log.append(f"waits {self.at}")
            if self.at == device.breaks_at:
                raise RuntimeError("an illegal address")
            device.arrive(self.at)

    def copied(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if not non_blocking:
            return copy(target, source)
        now = source.clone()  # the copy stands in the stream, so later launches don't change what it brings
        target.fill_(UNREAD)
        device.copies.append(lambda: copy(target, now))
        device.log.append(f"launched {len(device.copies)}")
        return target

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "copy_", copied)
        patch.setattr(torch.cuda, "Event", Event)
        patch.setattr(torch, "empty", lambda *args, **named: empty(*args, **(named | {"pin_memory": False})))
        down = transfers.down
        transfers._down = [transfers_module._Arena(), transfers_module._Arena()]

        def pinned(values: torch.Tensor) -> Any:
            transfers._pinned = True
            try:
                return down(values)
            finally:
                transfers._pinned = False

        patch.setattr(transfers, "down", pinned)
        yield device
