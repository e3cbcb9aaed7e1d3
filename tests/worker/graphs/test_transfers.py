"""Copies through pinned memory, over a stream that copies nothing before somebody waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tartlet_worker import transfers as module
from tartlet_worker.transfers import Transfers


class LazyStream:
    """Keeps copies back until an event is waited for. It reads their sources then, as a busy GPU does."""

    def __init__(self) -> None:
        self.queue: list[Callable[[], Any]] = []
        self.done = 0

    def run(self, until: int) -> None:
        while self.done < until:
            self.queue[self.done]()
            self.done += 1


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> LazyStream:
    stream, copy, empty = LazyStream(), torch.Tensor.copy_, torch.empty

    class Event:
        at = 0

        def record(self) -> None:
            self.at = len(stream.queue)

        def synchronize(self) -> None:
            stream.run(self.at)

    def copied(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if not non_blocking:
            return copy(target, source)
        stream.queue.append(lambda: copy(target, source))
        return target

    monkeypatch.setattr(torch.Tensor, "copy_", copied)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch, "empty", lambda *args, **named: empty(*args, **(named | {"pin_memory": False})))
    return stream


def pinned() -> Transfers:
    made = Transfers("cpu")
    made._pinned = True
    made._up, made._down = ([module._Arena(), module._Arena()] for _ in range(2))
    return made


@pytest.mark.parametrize("size", [1, 100, module._FIRST_WORDS + 1])
def test_memory_is_not_written_again_before_its_copy_has_ended(stream: LazyStream, size: int) -> None:
    transfers, target = pinned(), torch.zeros(size, dtype=torch.int32)
    sent = [transfers.up([np.full(size, k), np.arange(k)]) for k in range(1, 8)]
    transfers.up_into(target, [np.full(size, 8)])
    stream.run(len(stream.queue))
    for k, (a, b) in enumerate(sent, 1):
        assert a.tolist() == [k] * size
        assert b.tolist() == list(range(k))
    assert target.tolist() == [8] * size


def test_an_answer_is_read_once_its_copy_has_ended(stream: LazyStream) -> None:
    transfers = pinned()
    downloads = [transfers.down(torch.full((5,), k, dtype=torch.int32)) for k in (1, 2)]
    assert [d.wait().tolist() for d in downloads] == [[1] * 5, [2] * 5]
    first = transfers.down(torch.full((5,), 3, dtype=torch.int32))
    assert first.wait().tolist() == [3] * 5
    assert stream.done == 3


def test_bytes_travel_whole_and_arrays_start_at_whole_lines(stream: LazyStream) -> None:
    transfers = pinned()
    values = np.arange(257).astype(np.uint8)
    there, parts = transfers.up_bytes(values), transfers.up([np.arange(3), np.arange(70), np.arange(2)])
    stream.run(len(stream.queue))
    assert there.tolist() == values.tolist()
    assert [(part.data_ptr() - parts[0].data_ptr()) % 256 for part in parts] == [0, 0, 0]
    assert [part.tolist() for part in parts] == [list(range(n)) for n in (3, 70, 2)]
