"""Fixtures for tests against a real API server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.operator.api_server import ApiServer, api_server_up


@pytest.fixture(scope="session")
def api_server(repo: Path) -> Iterator[ApiServer]:
    """etcd and an API server that knows our kinds."""
    with api_server_up(repo / "crds") as server:
        yield server


@pytest.fixture
def namespace(api_server: ApiServer) -> str:
    """A new namespace for the test."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    api_server.create_namespace(name)
    return name
