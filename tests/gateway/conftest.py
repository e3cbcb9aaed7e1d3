"""A gateway in front of the fake engine, for all tests of this folder."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from tests.e2e.serving import Serving, serving
from tests.run_directory import run_directory


@dataclass(frozen=True)
class Gateway:
    """A `tartlet serve` with its gateway."""

    server: Serving
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options: object) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=30, **options)  # type: ignore[arg-type]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def gateway() -> Iterator[Gateway]:
    port = free_port()
    adapters = {"TARTLET_WORKER_ADAPTERS": "loud=/none, terse=/none"}  # a fake engine reads no files
    with run_directory() as directory, serving(directory, http=f"127.0.0.1:{port}", **adapters) as server:
        yield Gateway(server, port)


@pytest.fixture(scope="session")
def http(gateway: Gateway) -> Iterator[httpx.Client]:
    with gateway.client() as client:
        yield client
