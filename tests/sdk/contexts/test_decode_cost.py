"""A decode step of a context takes program and runtime the same calls, memory and bytes at 128 and 32,768 tokens."""

from __future__ import annotations

import gc
import sys
import tracemalloc
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


def peak_bytes(action: Callable[[], object]) -> int:
    """Return how much more memory than before is held at most while an action runs: a copied list shows here."""
    gc.disable()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        action()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
        gc.enable()


def decode_step(length: int, keeper: Keeper, measure: Callable[[Callable[[], object]], int]) -> tuple[int, int, int]:
    """Return what one decode step costs the SDK, the bytes of its submission, and what that costs the runtime."""
    _guest.start([])
    model = Model(0, "m", page_size=16, vocab_size=100, max_position=1 << 20, max_batch_tokens=2048)
    cache = KvCache(Queue(1, model), model)
    cache.decode(length, 7)  # makes the table, with rows for as much
    _channel.channel.submit()

    def step() -> None:
        cache.decode(length + 1, 7)
        _channel.channel.submit()

    sdk = measure(step)
    submission = keeper.submitted[-1]
    return sdk, len(submission), measure(lambda: parse(submission))


def test_a_decode_step_costs_the_same_at_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = Keeper()
    monkeypatch.setattr(_host, "backend", keeper)
    assert decode_step(128, keeper, calls) == decode_step(32_768, keeper, calls)
    few, _, few_parsed = decode_step(128, keeper, peak_bytes)
    many, _, many_parsed = decode_step(32_768, keeper, peak_bytes)
    copy = 8 * 32_768 // 16  # bytes of one copy of a list of rows
    assert many - few < copy // 4
    assert many_parsed - few_parsed < copy // 4


@pytest.mark.parametrize(("length", "forwards"), [(500, 1), (32_768, 64), (32_769, 17), (100_000, 49)])
def test_a_long_prompt_takes_few_forwards(monkeypatch: pytest.MonkeyPatch, length: int, forwards: int) -> None:
    """Each is a step of the engine, with its way through control and back."""
    monkeypatch.setattr(_host, "backend", Keeper())
    _guest.start([])
    model = Model(0, "m", page_size=16, vocab_size=100, max_position=1 << 20, max_batch_tokens=4096)
    cache = KvCache(Queue(1, model), model)
    sizes: list[int] = []
    monkeypatch.setattr(Queue, "forward_table", lambda _self, _table, _at, embeds, *_, **__: sizes.append(len(embeds)))
    cache.compute([1] * length, length)
    assert (len(sizes), sum(sizes)) == (forwards, length)
