"""A decode step of a context takes program and runtime the same calls and bytes at 128 and at 32,768 tokens."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from inferlet._contexts.kv_cache import KvCache
from inferlet._queues.queue import Queue
from inferlet._running import guest as _guest
from inferlet._values.types import Model
from inferlet._wire import channel as _channel
from inferlet._wire import host as _host
from tartlet_runtime.abi.submission import parse


class Keeper:
    """A backend that keeps submissions."""

    def __init__(self) -> None:
        self.submitted: list[bytes] = []

    def submit(self, data: bytes) -> None:
        self.submitted.append(data)

    def wait(self, max_records: int, timeout_us: int) -> bytes:
        raise AssertionError("a decode step waits for nothing")


def calls(action: Callable[[], object]) -> int:
    """Return how many functions, of Python and of C, an action calls."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def decode_step(length: int, keeper: Keeper) -> tuple[int, int, int]:
    """Return the calls of the SDK, the bytes of the submission and the calls of the runtime for one decode step."""
    _guest.start([])
    model = Model(0, "m", page_size=16, vocab_size=100, max_position=1 << 20, max_batch_tokens=2048)
    cache = KvCache(Queue(1, model), model)
    cache.decode(length, 7)  # makes the table, with rows for as much
    _channel.channel.submit()

    def step() -> None:
        cache.decode(length + 1, 7)
        _channel.channel.submit()

    sdk = calls(step)
    submission = keeper.submitted[-1]
    return sdk, len(submission), calls(lambda: parse(submission))


def test_a_decode_step_costs_the_same_at_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = Keeper()
    monkeypatch.setattr(_host, "backend", keeper)
    assert decode_step(128, keeper) == decode_step(32_768, keeper)
