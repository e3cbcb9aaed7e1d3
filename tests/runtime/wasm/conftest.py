"""Hosts for both boundaries, and the programs that tests run on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tartlet_runtime.guests.build import build
from tartlet_runtime.wasm import (
    Compiled,
    HostConfig,
    LinkedModule,
    WasmHost,
    default_cache_dir,
)
from tartlet_runtime.wasm.boundary.shim import build_shim
from tests.runtime.wasm.driving import Driver

GUESTS = Path(__file__).parent / "guests"
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def cache_dir() -> Path:
    return default_cache_dir()


@pytest.fixture(scope="session", params=["shim", "ctypes"])
def host(request: pytest.FixtureRequest, cache_dir: Path) -> Iterator[WasmHost]:
    if request.param == "shim" and build_shim(cache_dir) is None:
        pytest.skip("no C compiler")
    # With the default of 1 MB for each freed memory, the hosts of a test process grow to 5.8 GB.
    with WasmHost(HostConfig(boundary=request.param, cache_dir=cache_dir, warm_memory_bytes=1 << 14)) as opened:
        yield opened


@pytest.fixture(scope="session")
def probe(host: WasmHost) -> LinkedModule:
    return host.load(host.aot.compile((GUESTS / "probe.wasm").read_bytes()))


@pytest.fixture(scope="session")
def python_compiled(cache_dir: Path) -> Compiled:
    return build(cache_dir)


@pytest.fixture(scope="session")
def python(host: WasmHost, python_compiled: Compiled) -> LinkedModule:
    return host.load(python_compiled)


@pytest.fixture
def driver(host: WasmHost) -> Driver:
    return Driver(host)
