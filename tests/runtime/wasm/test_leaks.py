"""Launching and killing leaves nothing behind."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tartlet_runtime.wasm import Compiled, Delivery, GuestLimits, HostConfig, LinkedModule, Phase, WasmHost
from tests.runtime.wasm.conftest import GUESTS
from tests.runtime.wasm.driving import Driver

ORDERS = [b"e", b"l", b"m", b"u", b"r\0"]
"""Guests that end suspended, spinning, out of memory, trapped, done."""


@pytest.fixture
def small(host: WasmHost, cache_dir: Path) -> Iterator[WasmHost]:
    """A host of few slots, which are all warm soon: what grows after that is a leak."""
    config = HostConfig(
        max_guests=4, max_spares=16, boundary=host.boundary.name, cache_dir=cache_dir, warm_memory_bytes=1 << 16
    )
    with WasmHost(config) as opened:
        yield opened


def rss_bytes() -> int:
    gc.collect()
    size: int = psutil.Process().memory_info().rss
    return size


def churn(host: WasmHost, program: LinkedModule, cycles: int) -> None:
    driver = Driver(host)
    limits = GuestLimits(memory_bytes=16 << 20, cpu_slice_us=1)
    for i in range(cycles):
        guest = driver.run(driver.start(program, limits=limits))
        guest.deliver(Delivery(ORDERS[i % len(ORDERS)], 0))
        guest.step()
        guest.kill()
    host.drain()


@pytest.mark.timeout(120)
def test_2000_launches_and_kills_leak_nothing(small: WasmHost) -> None:
    probe = small.load(small.aot.compile((GUESTS / "probe.wasm").read_bytes()))
    churn(small, probe, 1000)
    before = rss_bytes()
    churn(small, probe, 2000)
    assert small.num_guests == 0
    assert rss_bytes() - before < 6 << 20  # 3 KB a cycle would show


@pytest.mark.timeout(300)
def test_python_guests_leak_nothing(small: WasmHost, python_compiled: Compiled) -> None:
    source = "from inferlet._wire import host as _host\nasync def main():\n    while True: _host.backend.wait(1, 1)\n"
    python, driver = small.load(python_compiled), Driver(small)

    def cycle(count: int) -> None:
        for _ in range(count):
            guest = driver.run(driver.start(python, source), b"", b"")
            assert guest.phase is Phase.WAITING
            guest.kill()
        small.drain()

    cycle(200)
    before = rss_bytes()
    cycle(200)
    assert rss_bytes() - before < 8 << 20
